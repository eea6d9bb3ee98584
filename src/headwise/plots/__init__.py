"""Figures: what was measured, drawn with matplotlib as PNG and SVG.

Nothing here touches pyplot or its global state: a figure is an object, drawn by Agg.

figure     one figure: its size, its fonts, its files
overview   a metric of all heads, layers by heads
heat_maps  the weights of one head, and the divergence of every two heads
curves     the attention at each distance, and the loss as heads are ablated
album      the figures of an inspection or of a corpus run
"""
