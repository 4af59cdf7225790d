"""Models of servers that others run, as the fleet serves them: the seats are told which of them take requests."""

from collections.abc import Callable

from terazi.policy.dispatch_messages import ModelClosed, ModelOpened, ReplicaGone
from terazi.service.attached import AttachedModel
from terazi.service.dispatching import News


class AttachedModels:
    """One for a fleet; *tell* tells the seats."""

    def __init__(self, tell: Callable[[News], None]) -> None:
        self._tell = tell
        #: By id.
        self.models: dict[str, AttachedModel] = {}

    def attach(self, model: AttachedModel) -> None:
        """Serve *model* from now on."""
        self.models[model.card.id] = model
        self._tell(ModelOpened(model=model.card.id))
        self._tell(model.replica_changed())

    def detach(self, model: AttachedModel) -> None:
        """Serve it no more."""
        if self.models.get(model.card.id) is model:
            self._tell(ModelClosed(model=model.card.id, reason=f"{model.card.id} is not served any more"))
            self._tell(ReplicaGone(replica=model.replica))
            del self.models[model.card.id]

    def answers(self, model: AttachedModel) -> None:
        """Its server answers again, or doesn't."""
        if self.models.get(model.card.id) is not model:
            return
        name = model.card.id
        if model.closed is not None:
            self._tell(model.replica_changed())
            self._tell(ModelClosed(model=name, reason=model.closed))
        else:
            self._tell(ModelOpened(model=name))
            self._tell(model.replica_changed())
