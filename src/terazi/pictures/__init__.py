"""Pictures of a plan as SVG and HTML: the device map, the roofline, the power-cap curve.

In: the nouns of a plan, and numbers. Out: text. Nothing is loaded from elsewhere, no script runs, and what a colour
says is said by a pattern or a word as well. May not open files, and knows no engine.
"""
