"""Plots for the docs in one style: small SVG files, drawn from the stored results of runs.

`style` defines colours, fonts and files; `lines` draws curves. `python -m benchmarks.plots` draws
all plots again from `benchmarks/results/`.
"""
