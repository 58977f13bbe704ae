"""Plots for the docs, all in one look: small SVG files, made from the stored results of runs.

`style` owns colours, type and files; `lines` draws curves. `python -m benchmarks.plots` makes all
plots again from `benchmarks/results/`.
"""
