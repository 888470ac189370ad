"""Typed parts of pages: plain values in, words and SVG geometry out; no request, no query."""
