"""Plots of what the library computes and measures."""
