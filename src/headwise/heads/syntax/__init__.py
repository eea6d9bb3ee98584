"""What heads know of grammar: of relations between words, and of named entities.

relations    whether a head's heaviest word is the one that a word depends on
entities     whether a head looks at named entities more than at other runs of words
"""
