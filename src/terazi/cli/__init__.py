"""What the user types: one module per command, rendering, exit codes.

stdout is data, stderr is for people. Imports are lazy: a command pays only for what it uses.
"""
