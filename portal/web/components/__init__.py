"""Typed components of pages: plain values to text and SVG geometry; no request, no query."""
