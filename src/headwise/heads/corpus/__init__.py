"""Many texts through one model: read one by one, measured, added up, resumed, shared out.

document     one text of a corpus, with what is known about its words
lines        the lines of a file from outside, bounded
spans        where words stand in a text, and what can be said about them
txt, jsonl, conllu   the formats a corpus may have, one file each
reading      the documents of a file, and a look through it beforehand
gathered     what has been added up, in two halves
bounds       what those sums can be
aligning     heads held against gold pairs
measuring    one document through a model
identity     what makes two runs the same run
folders      where a run is written, looked at before the work
blame        errors under the name that a person knows the matter by
store        named tensors in a file that is written whole or not at all
sharing      a corpus shared out over the processes of torchrun
running      a whole corpus, going on after an interruption
saved        a finished run in a folder
whole        from a model and a file to a finished run
probe        random tokens that repeat, in place of a corpus
report, export   a run for people and for programs
"""
