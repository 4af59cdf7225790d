"""What a model is, from its header alone: hyperparameters and every tensor with its exact size.

In: header bytes. Out: ``ModelSpec``. Nothing here opens a file; that is ``models.sources``, which only
``service`` and ``cli`` import. No weight is ever read.
"""
