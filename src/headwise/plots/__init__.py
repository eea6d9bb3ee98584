"""Figures: what was measured, drawn with matplotlib as PNG and SVG.

Nothing here touches pyplot or its global state: a figure is an object, drawn by Agg.

fonts        which fonts a text needs, so that no character is a box
sheet        one figure: its size, its texts, its files
overview     a metric of all heads, layers by heads
heat_map     the weights of one head
profile      how far heads look
similarity   how alike heads are
ablation     the loss as heads are taken out
album        the figures of an inspection or of a corpus run
"""
