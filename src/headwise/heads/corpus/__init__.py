"""Many texts through one model: read one by one, measured, added up, resumed, shared out.

document     one text of a corpus, with what is known about its words
lines        the lines of a file from outside, bounded
spans        where words stand in a text, and what can be said about them
txt, jsonl, conllu   the formats a corpus may have, one file each
reading      the documents of a file, and a look through it beforehand
"""
