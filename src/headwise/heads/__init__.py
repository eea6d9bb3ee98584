"""What each head of a real model does: captured, measured, reported.

The rooms inside, later ones building on earlier ones:

names        the notation L0H2
models       models that come inside packages, and how to get one
load         a model and its tokenizer, from a name, a directory or a hub id
weights      the attention weights of one block of queries, as the model computes them
metrics/     one published measure of a head, one file
statistics   sums of metrics that merge
capture      all of that from a running model, whose answers stay the same
inspection   a model on one text
report       an inspection as a document; `export` as JSON
"""
