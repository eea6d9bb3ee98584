"""What each head of a real model does: captured, measured, reported.

The rooms inside, later ones building on earlier ones:

names        the notation L0H2
models/      which trained models there are, how to get one, how any is loaded
metrics/     one published measure of a head, one file
statistics   sums of metrics that merge
words        attention between pieces of words as attention between words
flow         how much of each input token reaches a layer through all below
similarity   how alike heads are, and groups of heads that agree
capture/     all of that from a running model, whose answers stay the same
inputs       what a model is given for a text
inspection   a model on one text
corpus/      a model on many texts, which can be resumed and shared out
report       an inspection as a document; `export` as JSON
"""
