"""The seats, as far as whoever owns engines needs them."""

from typing import Protocol, TypeAlias

from terazi.policy.dispatch_messages import ModelClosed, ModelOpened, ReplicaChanged, ReplicaGone

#: What is told of engines and models.
News: TypeAlias = ReplicaChanged | ReplicaGone | ModelClosed | ModelOpened


class Dispatching(Protocol):
    """Who sends requests to them."""

    def tell(self, news: News) -> None:
        """What has become of a replica or a model."""
        ...
