"""What each head of a real model does: captured, measured, reported.

The rooms inside; later ones build on earlier ones:

names         the notation L0H2
metrics/      published measures of a head, a file for each family
statistics/   sums of metrics that merge, and how certain the values are
analysis/     alignment, circuits, similarity, rollout and flow, attention between words
capture/      attention of a running model, whose output stays the same
models/       trained models: the catalogue, downloads, safe loading
model_inputs  what a model receives for a text
inspection    one model on one text; `highlights` the heads with the most unusual values,
              `inspection_report` for people, `inspection_export` as JSON, CSV and Parquet
ablation/     the effect of removing heads
naming/       names of heads, each with its evidence and its error probability
corpus/       one model on many texts; a run can be resumed and distributed
"""
