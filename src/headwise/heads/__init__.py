"""What each head of a real model does: captured, measured, reported.

The rooms inside, later ones building on earlier ones:

names        the notation L0H2
models/      which trained models there are, how to get one, how any is loaded
metrics/     one published measure of a head, one file
statistics   sums of metrics that merge
tally        any named sums that merge; `moments` shares with their spread, `intervals` their tests
words        attention between pieces of words as attention between words
alignment    heads held against gold pairs of query and key
flow         how much of each input token reaches a layer through all below
similarity   how alike heads are, and groups of heads that agree
sparsity     what few columns and diagonals of a map hold; `variability` its change with the text
capture/     all of that from a running model, whose answers stay the same
inputs       what a model is given for a text
inspection   a model on one text
circuits     what a head can do, from its weights alone
syntax/      relations between words, and named entities
taxonomy/    names of heads, each with its evidence and its chance of error
corpus/      a model on many texts, which can be resumed and shared out
report       an inspection as a document; `export` as JSON
"""
