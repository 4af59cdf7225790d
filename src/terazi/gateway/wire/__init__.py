"""Shapes and translations of each API, without I/O: dicts and bytes in, dicts and bytes out."""
