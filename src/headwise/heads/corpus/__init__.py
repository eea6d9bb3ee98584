"""Many texts through one model: read one by one, measured, added up, resumed, shared out.

document     one text of a corpus, with what is known about its words
"""
