"""Capture, measure and report the attention of each head of a trained model.

The subpackages and modules; later entries build on earlier entries:

names         the notation L0H2
metrics/      published metrics of a head, one file for each family
statistics    sums of the metrics over texts
sums          generic sums over texts, and confidence intervals from them
analysis/     alignment, circuits, similarity, rollout and flow, attention between words
capture/      measure the attention of a running model without changing its output
models/       trained models: catalogue, downloads, safe loading
model_inputs  the inputs of a model for a text
inspection    one model on one text; `highlights` are the heads with the most unusual values,
              `inspection_report` is for people, `inspection_export` writes JSON, CSV and Parquet
ablation/     measure the effect of removing heads
naming/       names of heads, each with its evidence and p-value
corpus/       one model on many texts, resumable and distributed
"""
