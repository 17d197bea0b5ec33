"""`sessiond doctor`: what is seen (`observe`), what it means (`judge`), and what mends it.

A topic's facts are plain values and its `judge` is pure. Nothing here disturbs a running daemon: no
model is loaded beside it.
"""
