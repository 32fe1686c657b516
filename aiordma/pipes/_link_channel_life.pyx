# cython: language_level=3, boundscheck=False, wraparound=False
"""A message channel on a link: its TCP connection, its user's callbacks, and its end.

CLOSE means: this end sends no more messages and READs no more, so what was announced to it can be freed. An end that
receives CLOSE answers with its own when it has handed over everything before it. Once both CLOSEs are sent and
acknowledged, or the link has failed, the channel is finished, and its TCP connection may be closed. Where the link
fails or the peer aborts, what has come whole is handed over first, as what lies in a socket is.
"""
import logging

from ..datapath._qp cimport Flow
from ._link_channel_receive cimport broken_rule
from ._link_channel_send cimport WANT_NOTHING

from .. import wake
from ..errors import LinkError

logger = logging.getLogger("aiordma.channel")


cdef class ChannelLife(Flow):
    """What ``MessageChannel`` stands on."""

    cdef int writable(self) except -1:
        """What a send lacked has come, or it will never."""
        raise NotImplementedError

    cdef int deliver(self) except -1:
        """Hand over what can be."""
        raise NotImplementedError

    # ---- what it belongs to

    def attach_tcp(self, sock) -> None:
        """Hand over the TCP connection that the channel began on: liveness signal, closed at the end, and with
        the watch that the loop may have of it."""
        if self._own is None:       # over already
            wake.current().unwatch_fd(sock.fileno())
            sock.close()
        else:
            self._own.attach_tcp(sock)

    def forget(self) -> None:
        """The negotiation failed before the peer could use this channel: unregister, send nothing."""
        self.closed = self.over = True
        self.inbox.drop()
        self.finish()

    @property
    def own(self):
        """What holds it."""
        return self._own

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_finished(self) -> bool:
        """Closed, and nothing of it is in use any more."""
        return self.finished

    @property
    def peer_gone(self) -> bool:
        """The peer sends no more."""
        return self.peer_ended

    @property
    def on_closed(self):
        return self.end_report.callback

    @on_closed.setter
    def on_closed(self, callback) -> None:
        self.end_report.callback = callback

    cdef int fail_by_user(self, object error) except -1:
        """A callback raised this."""
        logger.error("a callback of a channel failed: the channel is broken", exc_info=error)
        if not self.closed and not self.finished:
            self.distrust(error)
        return 0

    # ---- end

    def close(self) -> None:
        """See ``Channel.close``."""
        self._close(False)

    def abort(self) -> None:
        """See ``Channel.abort``."""
        self._close(True)

    def _close(self, bint abnormal) -> None:
        if self.finished or (self.closed and (self.aborting or not abnormal)):
            return
        self.closed = self.over = True
        self.on_writable = None
        self.end_report.drop()
        self.inbox.set_on_message(None)
        self.pulls.placer = None
        self.inbox.drop()
        if self.outbox.budget is None and self.error is None:
            self.error = LinkError("closed before the connection was confirmed")
        self.begin_ending(abnormal or self.error is not None)
        self.finish_if_done()

    cdef int begin_ending(self, bint abort) except -1:
        """Send CLOSE as soon as no READ of this channel is under way."""
        self.ending = True
        self.aborting = self.aborting or abort
        if self.outbox.budget is not None:
            self.qp.enqueue(self)
        return 0

    cdef bint close_is_due(self) noexcept:
        return (self.ending and self.pulls.reads == 0
                and (not self.close_sent or (self.aborting and not self.abort_sent)))

    cdef int receive_close(self, bint abort) except -1:
        self.sources.release_all()
        if self.peer_ended and not abort:
            return 0
        if abort and not self.over:
            self.lose(LinkError("the peer aborted the connection"))
            self.peer_ended = True
            return self.finish_if_done()
        self.peer_ended = True
        if not self.inbox.waiting:
            self.end(None)
        elif self.want != WANT_NOTHING:
            self.writable()         # who waits for room may take what has come only when it has sent
        return self.finish_if_done()

    cdef int end(self, object error) except -1:
        """The peer sends no more, or is not trusted any more: inform the user, and answer the peer."""
        if self.error is None and not self.over:
            self.error = error
        self.begin_ending(error is not None)
        if self.over:
            return 0
        self.over = True
        self.inbox.set_on_message(None)
        self.pulls.placer = None
        self.qp.cq.wakes += 1
        self.end_report.end(error)
        return 0

    cdef int violation(self, str text) except -1:
        return 0 if self.distrusted else self.distrust(broken_rule(text))

    cdef int distrust(self, object reason) except -1:
        """Nothing that comes from the peer counts any more."""
        self.distrusted = True
        self.inbox.drop()
        return self.end(reason)

    cdef int lose(self, object reason) except -1:
        """The peer is gone, or the way to it. The end comes behind what had come whole before."""
        cdef bint all_whole
        if self.closed or self.over:
            return self.distrust(reason)
        if self.distrusted:
            return 0                # lost before
        self.distrusted = True
        all_whole = self.inbox.keep_whole()
        if not self.inbox.waiting:
            return self.end(reason)
        if not self.peer_ended or not all_whole:    # else it had closed in order
            self.lost = self.error = reason
            self.peer_ended = True
            self.begin_ending(True)
        self.qp.cq.call_soon(self._tell_of_loss)
        return 0

    def _tell_of_loss(self) -> None:
        """Who waits for room may take what has come only when it has sent."""
        if self.want != WANT_NOTHING:
            self.writable()
        self.deliver()

    cdef int on_broken(self, object reason) except -1:
        # Before the link's end is noted: READs that are under way then look as if they were done.
        self.lose(reason)
        if self.qp.failed:
            self.pulls.link_failed()
            self.sources.release_all()
        return self.finish_if_done()

    def break_with(self, reason: BaseException) -> None:
        """Fail this channel alone (its TCP connection was lost)."""
        if not self.finished:
            self.on_broken(reason)

    @property
    def is_aborting(self) -> bool:
        """This side has given it up, and the peer has not answered yet."""
        return self.closed and self.aborting and not self.finished

    def give_up(self) -> None:
        """End an aborted channel whose peer does not answer. What it announced can be freed: what is placed there
        later is meant for the same peer, and a READ of it that finds nothing more breaks that peer's link only."""
        if self.is_aborting and (self.pulls.reads == 0 or self.qp.failed):
            self.peer_ended = self.close_sent = True
            self.closing_position = self.qp.sq_retired
            self.finish_if_done()

    @property
    def last_message_delivered(self) -> bool:
        """The peer's device has acknowledged our closing message."""
        return self.close_sent and not self.qp.refused and self.qp.is_done(self.closing_position)

    cdef int finish_if_done(self) except -1:
        if self.finished or not self.closed:
            return 0
        if not self.qp.failed and self.outbox.budget is not None:
            if not self.peer_ended or self.pulls.reads:
                return 0
            if not self.last_message_delivered:
                self.qp.wait_for_room(self)     # its completion brings us back through on_room()
                return 0
        self.sources.release_all()
        self.finish()
        on_finished, self._own, self.on_finished = self.on_finished, None, None     # each refers to the other
        if on_finished is not None:
            on_finished(self)
        return 0

    cdef int finish(self) except -1:
        self.finished = True
        self.qp.unregister(self)
        self.pulls.flow = None      # each refers to the other
        return 0
