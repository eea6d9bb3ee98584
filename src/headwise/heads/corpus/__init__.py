"""Corpora: documents are read, measured, accumulated, checkpointed and reported.

documents       text with annotations, its place in a file, and their validation
readers         plain text and JSON lines; the validation of a whole file
conllu          CoNLL-U
measurement     one document through a model
accumulated     the sums of a run, in two halves, and their validation when read from a file
checkpoint      tensor files and finished runs
pipeline        a corpus through a model, resumable, in several processes
probe           repeated random tokens in place of a corpus
corpus_report   a run as a document, as a table and as JSON
"""
