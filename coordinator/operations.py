"""What people change by hand, as methods of both faces: groups that are paused, moved or deleted, topics that are altered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.protocol import operations as protocol
from coordinator.protocol import rights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.model import (
        DeletedGroup,
        DeletedTopic,
        GroupInFlight,
        Oldest,
        PartitionPause,
        ScheduledMessage,
        SeekOutcome,
        SkipOutcome,
    )
    from coordinator.protocol.operations import Place, Target
    from coordinator.protocol.statement import Flow, Statement

T = TypeVar("T")


class Operations:
    """Changes by hand, for `Coordinator`. Each is written down with its reason, and read again in the view audit_list."""

    def _drive(self, flow: Flow[T]) -> T:
        raise NotImplementedError

    def _execute(self, statement: Statement[T]) -> T:
        raise NotImplementedError

    # ---- groups

    def pause(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        reason: str | None = None,
    ) -> list[PartitionPause]:
        """Fetch and hand over nothing of a group, or of a topic or partitions of it, until `resume`.

        What runs may finish and is settled. It lasts over restarts and takeovers, and is seen by the group's members at once
        where they LISTEN, else with their next look (`membership_poll_s`).

        Raises:
            NotFoundError: No such group, or it reads no such topic or partition.
        """
        return self._drive(protocol.pause(group, topic, partitions, reason))

    def resume(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        reason: str | None = None,
    ) -> list[PartitionPause]:
        """End a pause; raises as `pause`."""
        return self._drive(protocol.resume(group, topic, partitions, reason))

    def seek(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        to: Target | None = None,
        by: int | None = None,
        offsets: Mapping[Place, int] | None = None,
        force: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> list[SeekOutcome]:
        """Move a group: what lies at or above the target is delivered (again), what lies below it is not.

        Args:
            topic, partitions: Only there; all that the group reads by default.
            to: "earliest", "latest", an offset, or an aware datetime: the first message published then or later.
            by: By how many offsets from the committed one; negative: backwards.
            offsets: For each topic and partition its own; only these are moved.
            force: Even though members are live. They lose the partitions and take them again at the new place; their acks under
                way are refused, transactional ones too, and what they were doing is done again.
            dry_run: Only say what would happen.

        Returns:
            One entry per partition; targets outside of the log were clamped to it.

        Raises:
            NotFoundError: No such group, or it reads no such topic or partition.
            ConflictError: Members are live and `force` is not given; or somebody holds a claim's row and does not let go. Notes
                of the error say how many partitions were moved before: each is moved in a transaction of its own.
            InvalidInputError: No target, or more than one.
        """
        return self._drive(
            protocol.seek(
                group,
                topic=topic,
                partitions=partitions,
                to=to,
                by=by,
                offsets=offsets,
                force=force,
                dry_run=dry_run,
                reason=reason,
            )
        )

    def skip(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        dead_letter: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> SkipOutcome:
        """Make a group pass one message that blocks it: as skipped, or as a dead letter.

        A live owner loses the partition and takes it again at once; what else it was running there is done again.

        Raises:
            NotFoundError: No such group, topic, partition or message.
            ConflictError: The group has settled it already.
        """
        return self._drive(
            protocol.skip(group, topic, partition, offset, dead_letter=dead_letter, dry_run=dry_run, reason=reason)
        )

    def delete_group(self, group: str, *, force: bool = False, reason: str | None = None) -> DeletedGroup:
        """Delete a group for good: its offsets, parked messages and dead letters.

        Args:
            force: Even though members are live: what reads the group ends with DeletedError, what else they read goes on.

        Raises:
            NotFoundError: No such group.
            ConflictError: Members are live and `force` is not given.
        """
        return self._drive(protocol.delete_group(group, force=force, reason=reason))

    def group_in_flight(self, group: str) -> list[GroupInFlight]:
        """What owners may have in hand; which of it a handler is at, only its process knows: see `status`."""
        return self._execute(protocol.group_in_flight(group))

    def oldest_unsettled(self, group: str) -> dict[Place, Oldest]:
        """The oldest message that a group has not settled, by topic and partition. Raises: NotFoundError."""
        return self._execute(protocol.oldest_unsettled(group))

    # ---- topics

    def alter_topic(self, topic: str, *, reason: str | None = None, **settings: Any) -> dict[str, Any]:
        """Change settings of a topic, and leave the others; returns these as they were.

        Args:
            settings: max_message_bytes, wake, dedup_window_s, max_backlog, retention_s, retention_bytes, unconsumed,
                segment_max_age_s, segment_max_bytes: see `create_topic`. Publishers may believe the old limit of bytes for a
                minute.

        Raises:
            NotFoundError: No such topic.
            InvalidInputError: No such setting, or a value that no topic can have.
        """
        return self._drive(protocol.alter_topic(topic, settings, reason))

    def set_topic_rights(self, topic: str, *, publish: Sequence[str] | None, subscribe: Sequence[str] | None) -> None:
        """Name the roles of the database that may publish to a topic and read it; None: whoever may call the functions.

        Raises:
            NotFoundError: No such topic or role.
        """
        self._execute(rights.set_topic_rights(topic, publish, subscribe))

    def set_group_expiry(
        self,
        group: str,
        expire_s: float | None,
        on_expiry: str = "release",
        max_dead_letter_age_s: float | None = None,
    ) -> None:
        """Say what becomes of a group that has had no members for `expire_s`, and how long its dead letters are kept.

        Args:
            on_expiry: release: it skips what retention drops; delete: it is deleted, with its dead letters.

        Raises:
            NotFoundError: No such group.
            InvalidInputError: A value that no group can have.
        """
        self._execute(rights.set_group_expiry(group, expire_s, on_expiry, max_dead_letter_age_s))

    def add_partitions(self, topic: str, partitions: int, *, reason: str | None = None) -> int:
        """Raise the count of a topic's partitions to `partitions`; returns how many were added.

        A key's messages may go to another partition from now on: their order is kept only among the new ones. Groups read the new
        partitions from their first offset.

        Raises:
            NotFoundError: No such topic.
            ConflictError: It has more already.
        """
        return self._drive(protocol.add_partitions(topic, partitions, reason))

    def delete_topic(self, topic: str, *, force: bool = False, reason: str | None = None) -> DeletedTopic:
        """Delete a topic for good, with its scheduled messages and dedup keys, and what groups have of it, dead letters too.

        Raises:
            NotFoundError: No such topic.
            ConflictError: It is in use (live members, messages unsettled or scheduled, open transactions that publish) and
                `force` is not given; or an open transaction has scheduled a message.
        """
        return self._drive(protocol.delete_topic(topic, force=force, reason=reason))

    # ---- scheduled messages

    def scheduled(self, topic: str | None = None, *, limit: int = 1000) -> list[ScheduledMessage]:
        """Messages that wait for their time, those due first first."""
        return self._execute(protocol.list_scheduled(topic, limit))

    def cancel_scheduled(self, topic: str, schedule_ids: Sequence[int]) -> list[int]:
        """Take messages back that wait for their time; returns which: the others are published already.

        Raises:
            NotFoundError: No such topic.
        """
        return self._drive(protocol.cancel_scheduled(topic, schedule_ids))


class AsyncOperations:
    """`Operations` for `AsyncCoordinator`, with the same names."""

    async def _drive(self, flow: Flow[T]) -> T:
        raise NotImplementedError

    async def _execute(self, statement: Statement[T]) -> T:
        raise NotImplementedError

    async def pause(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        reason: str | None = None,
    ) -> list[PartitionPause]:
        """`Coordinator.pause`."""
        return await self._drive(protocol.pause(group, topic, partitions, reason))

    async def resume(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        reason: str | None = None,
    ) -> list[PartitionPause]:
        """`Coordinator.resume`."""
        return await self._drive(protocol.resume(group, topic, partitions, reason))

    async def seek(
        self,
        group: str,
        topic: str | None = None,
        *,
        partitions: Sequence[int] | None = None,
        to: Target | None = None,
        by: int | None = None,
        offsets: Mapping[Place, int] | None = None,
        force: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> list[SeekOutcome]:
        """`Coordinator.seek`."""
        return await self._drive(
            protocol.seek(
                group,
                topic=topic,
                partitions=partitions,
                to=to,
                by=by,
                offsets=offsets,
                force=force,
                dry_run=dry_run,
                reason=reason,
            )
        )

    async def skip(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        dead_letter: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> SkipOutcome:
        """`Coordinator.skip`."""
        return await self._drive(
            protocol.skip(group, topic, partition, offset, dead_letter=dead_letter, dry_run=dry_run, reason=reason)
        )

    async def delete_group(self, group: str, *, force: bool = False, reason: str | None = None) -> DeletedGroup:
        """`Coordinator.delete_group`."""
        return await self._drive(protocol.delete_group(group, force=force, reason=reason))

    async def group_in_flight(self, group: str) -> list[GroupInFlight]:
        """`Coordinator.group_in_flight`."""
        return await self._execute(protocol.group_in_flight(group))

    async def oldest_unsettled(self, group: str) -> dict[Place, Oldest]:
        """`Coordinator.oldest_unsettled`."""
        return await self._execute(protocol.oldest_unsettled(group))

    async def alter_topic(self, topic: str, *, reason: str | None = None, **settings: Any) -> dict[str, Any]:
        """`Coordinator.alter_topic`."""
        return await self._drive(protocol.alter_topic(topic, settings, reason))

    async def set_topic_rights(
        self, topic: str, *, publish: Sequence[str] | None, subscribe: Sequence[str] | None
    ) -> None:
        """`Coordinator.set_topic_rights`."""
        await self._execute(rights.set_topic_rights(topic, publish, subscribe))

    async def set_group_expiry(
        self,
        group: str,
        expire_s: float | None,
        on_expiry: str = "release",
        max_dead_letter_age_s: float | None = None,
    ) -> None:
        """`Coordinator.set_group_expiry`."""
        await self._execute(rights.set_group_expiry(group, expire_s, on_expiry, max_dead_letter_age_s))

    async def add_partitions(self, topic: str, partitions: int, *, reason: str | None = None) -> int:
        """`Coordinator.add_partitions`."""
        return await self._drive(protocol.add_partitions(topic, partitions, reason))

    async def delete_topic(self, topic: str, *, force: bool = False, reason: str | None = None) -> DeletedTopic:
        """`Coordinator.delete_topic`."""
        return await self._drive(protocol.delete_topic(topic, force=force, reason=reason))

    async def scheduled(self, topic: str | None = None, *, limit: int = 1000) -> list[ScheduledMessage]:
        """`Coordinator.scheduled`."""
        return await self._execute(protocol.list_scheduled(topic, limit))

    async def cancel_scheduled(self, topic: str, schedule_ids: Sequence[int]) -> list[int]:
        """`Coordinator.cancel_scheduled`."""
        return await self._drive(protocol.cancel_scheduled(topic, schedule_ids))
