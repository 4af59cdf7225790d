"""Whether tokens guessed ahead pay: tokens a step, and what guessing and checking cost.

In: a plain step, a drafting pass, a checking step, how many guesses are right. Out: ``Guessing``.

An engine reports accepted/drafted = r. A step that drafts g tokens then yields 1 + r·g (Leviathan et al., "Fast
inference from transformers via speculative decoding", 2211.17192, has (1-a^(g+1))/(1-a) for the chance a of a
single guess; r is not a). It takes g passes of the draft and one pass of the model over g + 1 tokens a stream.
Reading the weights pays for all of them at once, computing does not: so the gain fades as streams fill the step.
"""

from typing import Final, NamedTuple

#: Accepted/drafted where nothing was measured: prose 0.5, code 0.8 and more (sudoingX/qwen38-mtp, club-3090).
ASSUMED_ACCEPTED: Final = 0.65
#: And how far off that may be, as factors on the tokens of a step.
ACCEPTED_SPREAD: Final = (0.80, 1.20)
#: Seconds that a drafting pass takes beside what it reads: its launches, picking the token, handing it on.
PASS_S: Final = 0.8e-3


class Guessing(NamedTuple):
    """One step that guesses.

    Args:
        tokens: that each stream gets of it, on average.
        step_s: its seconds.
        plain_s: of a step that guesses nothing.
    """

    tokens: float
    step_s: float
    plain_s: float

    @property
    def gain(self) -> float:
        """How many times as fast as without; below 1 it makes things slower."""
        return self.tokens * self.plain_s / self.step_s

    @property
    def token_s(self) -> float:
        """Seconds between two tokens of one stream, on average."""
        return self.step_s / self.tokens


def tokens_per_step(accepted: float, drafted: int) -> float:
    """1 + r·g tokens.

    Raises:
        ValueError: *accepted* isn't a share.
    """
    if not 0 <= accepted <= 1:
        raise ValueError(f"accepted/drafted must lie in 0..1, not {accepted}")
    return 1 + accepted * drafted


def guess(*, plain_s: float, check_s: float, draft_pass_s: float, drafted: int, accepted: float) -> Guessing:
    """A step of *drafted* passes of the draft and one check of *check_s* seconds."""
    return Guessing(
        tokens=tokens_per_step(accepted, drafted), step_s=check_s + drafted * draft_pass_s, plain_s=plain_s
    )
