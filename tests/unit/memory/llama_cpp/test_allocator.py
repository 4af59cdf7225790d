"""The order of free blocks where empty tensors come and go, as ``ggml-alloc.c`` of build b11434 leaves it."""

from terazi.memory.llama_cpp.allocator import Arena


def test_a_block_behind_an_empty_one_is_still_joined() -> None:
    """An empty tensor took its address from a free block that began lower when the next tensor took all of it."""
    arena = Arena()
    first, second, third = arena.take(32), arena.take(32), arena.take(64)
    arena.take(32)
    arena.release(second, 32)
    empty = arena.take(0)
    arena.release(first, 32)
    whole = arena.take(64)
    arena.release(empty, 0)  # an empty block in the middle of what is taken
    arena.release(third, 64)
    arena.release(whole, 64)  # joins the block behind it, not the empty one
    assert arena.take(128) == 0
    assert arena.peak == 160


def test_free_neighbours_are_joined() -> None:
    arena = Arena()
    parts = [arena.take(32) for _ in range(4)]
    for part in (parts[0], parts[2], parts[1]):
        arena.release(part, 32)
    assert arena.take(96) == 0
    assert arena.peak == 128
