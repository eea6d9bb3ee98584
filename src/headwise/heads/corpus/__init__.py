"""Corpora: read documents, measure heads on them, and accumulate, save and report the results.

documents       a text with annotations, its place in a file, and their validation
readers         read plain text and JSON lines; validate a whole file
conllu          read CoNLL-U
measurement     measure a model on one document
accumulated     the sums of a run in two halves, and their validation
checkpoint      save and open tensor files and finished runs
pipeline        measure a corpus, resumably and in several processes
probe           measure repeated random tokens instead of a corpus
corpus_report   a run as a document, as a table and as JSON
"""
