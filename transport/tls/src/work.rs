//! What a transport does for its links before and after the turn of the base transport.

use std::time::Duration;

use grpcxx_transport::{CloseReason, Frame, Inbound, LinkHandler, LinkId, Next, Park};

use crate::handshake::{HandshakeError, HandshakeStep};
use crate::link::{Closing, OpenLink, Pending, Phase, Staged};
use crate::open::Stop;
use crate::pool::{LARGE_TEXT_BYTES, SEALED_RECORDS};
use crate::record::CLOSE_NOTIFY;
use crate::session::{Session, SessionError};
use crate::tap::CONTROL_TOKEN;
use crate::transport::Tls;

impl<T: Park> Tls<T> {
    /// Lets links go on that were resumed, or that the last turn had no room for. Returns the
    /// number of events.
    pub(crate) fn go_on(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let count = self.layer.as_ref().map_or(0, |layer| layer.due.len());
        let mut events = 0;
        for _ in 0..count {
            let due = self.layer.as_mut().and_then(|layer| layer.due.pop_front());
            let Some(id) = due else {
                break;
            };
            let link = self.layer.as_mut().and_then(|layer| layer.find_mut(id));
            let Some(link) = link else {
                continue;
            };
            link.is_due = false;
            if let Some(layer) = &mut self.layer {
                layer.tell_sent(id, &mut events, handler);
            }
            let link = self.layer.as_ref().and_then(|layer| layer.find(id));
            let Some(link) = link else {
                continue;
            };
            match &link.phase {
                Phase::Plain => events += self.pass_on(id, handler),
                Phase::Open(_) => self.read_on(id, &mut events, handler),
                Phase::Dialling
                | Phase::Undecided { .. }
                | Phase::Handshaking { .. }
                | Phase::Over => {}
            }
        }
        events
    }

    /// Leaves a link to the base transport that is not TLS. Returns the number of events.
    fn pass_on(&mut self, id: LinkId, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let Some(layer) = &mut self.layer else {
            return 0;
        };
        let Some(mut link) = layer.remove(id) else {
            return 0;
        };
        while let Some(frame) = link.outbound.pop() {
            layer.frames -= 1;
            if let Err(refused) = self.base.send(id, frame) {
                layer.frames += 1;
                link.outbound.push(refused.value);
                break;
            }
        }
        if let Some(closing) = link.closing {
            self.base.close(id, closing == Closing::Flush);
        }
        // What was refused is of a link that is gone.
        layer.give_back(&mut link, handler)
    }

    /// Opens what a link has, and lets the base transport read on.
    fn read_on(
        &mut self,
        id: LinkId,
        events: &mut usize,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        let opened = layer.open_with(id, events, handler, |opener, _| {
            *opener.events += opener.link.inbound.offer(id, &[], opener.handler);
            opener.open_staged()
        });
        let Some((next, stop)) = opened else {
            return;
        };
        if stop == Stop::TurnFull {
            layer.go_on(id);
        }
        self.order(id, next);
    }

    /// Lets the base transport, which is paused, do something.
    fn order(&mut self, id: LinkId, next: Next) {
        if let Next::Pause = next {
            return;
        }
        // Refused only if the link is gone there, which it will tell.
        if let Err(refused) = self.base.resume(id, next)
            && let (Next::Land(landing), Some(layer)) = (refused.value, &mut self.layer)
        {
            layer.pool.put_staging(landing.into_buffer());
        }
    }

    /// Takes some of the handshakes a step further. Returns the number of events.
    pub(crate) fn step_handshakes(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut events = 0;
        let Some(layer) = &self.layer else {
            return 0;
        };
        let count = layer.steps.len().min(layer.options.steps_per_turn);
        for _ in 0..count {
            let next = self
                .layer
                .as_mut()
                .and_then(|layer| layer.steps.pop_front());
            if let Some(id) = next {
                self.step_handshake(id, &mut events, handler);
            }
        }
        events
    }

    fn step_handshake(
        &mut self,
        id: LinkId,
        events: &mut usize,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        let is_wanted = layer.find(id).is_some_and(|link| {
            link.over.is_none() && matches!(link.phase, Phase::Handshaking { .. })
        });
        if !is_wanted {
            return layer.let_next_begin();
        }
        let mut said = Vec::new();
        let step = match layer.handshake(id) {
            Ok(Some(handshake)) => handshake.step(&mut said),
            // Too many are under way; the next that ends makes room.
            Ok(None) => return layer.waiting.push_back(id),
            Err(error) => {
                layer.let_next_begin();
                Err(error)
            }
        };
        self.say(id, &said);
        match step {
            Ok(HandshakeStep::Wait) => self.order(id, Next::Head { at_least_bytes: 1 }),
            Ok(HandshakeStep::Done) => match self.open_session(id, events, handler) {
                Ok(()) => self.read_on(id, events, handler),
                Err(error) => self.fail_handshake(id, &error),
            },
            Err(error) => self.fail_handshake(id, &error.into()),
        }
    }

    /// Sends a message of a handshake, or an alert.
    fn say(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let mut frame = layer.pool.frame(bytes.len());
        frame.bytes_mut().extend_from_slice(bytes);
        frame.token = CONTROL_TOKEN;
        match self.base.send(id, frame) {
            Ok(()) => {
                layer.base_frames += 1;
                if let Some(link) = layer.find_mut(id) {
                    link.base_frames += 1;
                }
            }
            // The link is gone there, which it will tell.
            Err(refused) => layer.pool.put_frame(refused.value),
        }
    }

    fn fail_handshake(&mut self, id: LinkId, error: &SessionError) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        layer.counters.handshakes_failed.add(1);
        if let Some(link) = layer.find_mut(id) {
            match error.is_of_certificates() {
                true => link.distrust("TLS handshake with", error.to_string()),
                false => link.fail("TLS handshake with", error.to_string()),
            }
            self.base.close(id, true);
        }
    }

    /// Goes over from a handshake to records.
    fn open_session(
        &mut self,
        id: LinkId,
        events: &mut usize,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) -> Result<(), SessionError> {
        let Some(layer) = &mut self.layer else {
            return Ok(());
        };
        let records_per_key = layer.options.records_per_key;
        let Some(link) = layer.find_mut(id) else {
            return Ok(());
        };
        let phase = std::mem::replace(&mut link.phase, Phase::Over);
        let Phase::Handshaking { handshake, next } = phase else {
            link.phase = phase;
            return Ok(());
        };
        let closing = link.closing;
        layer.release_handshake();
        let Pending::Begun(handshake) = handshake else {
            return Err(HandshakeError::UnknownState.into());
        };
        let (session, rest) = Session::new(handshake.finish()?, records_per_key)?;
        layer.counters.handshakes.add(1);
        if session.is_proven {
            handler.proven(id, session.name.as_ref());
        }
        let next = next.unwrap_or_else(|| {
            *events += 1;
            handler.connected(id)
        });
        let staged = (!rest.is_empty()).then(|| Staged {
            from: 0,
            to: rest.len(),
            buffer: rest.into(),
        });
        if let Some(link) = layer.find_mut(id) {
            link.phase = Phase::Open(Box::new(OpenLink {
                session,
                inbound: Inbound::new(next),
                staged,
            }));
        }
        layer.stain(id);
        if closing == Some(Closing::Now) {
            self.close_now(id, false);
        }
        Ok(())
    }

    /// Seals what waits, for each link that has something.
    pub(crate) fn seal_all(&mut self) {
        while let Some(id) = self.layer.as_mut().and_then(|layer| layer.dirty.pop()) {
            self.seal(id);
        }
    }

    fn seal(&mut self, id: LinkId) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        let Some(link) = layer.find_mut(id) else {
            return;
        };
        link.is_dirty = false;
        if link.over.is_some() || !matches!(link.phase, Phase::Open(_)) {
            return;
        }
        while let Some(frame) = self.next_sealed(id) {
            let Some(layer) = &mut self.layer else {
                return;
            };
            let sent = self.base.send(id, frame);
            let Some(link) = layer.find_mut(id) else {
                return;
            };
            match sent {
                Ok(()) => {
                    link.base_frames += 1;
                    link.base_data_frames += 1;
                    layer.base_frames += 1;
                }
                Err(refused) => {
                    link.unsent = Some(refused.value);
                    return;
                }
            }
        }
        let link = self.layer.as_ref().and_then(|layer| layer.find(id));
        let is_flushed = link.is_some_and(|link| {
            link.closing == Some(Closing::Flush) && link.over.is_none() && link.outbound.is_sealed()
        });
        if is_flushed {
            self.close_now(id, true);
        }
    }

    /// The next records of a link, if it may send more.
    fn next_sealed(&mut self, id: LinkId) -> Option<Box<Frame>> {
        let layer = self.layer.as_mut()?;
        let mut frame = {
            let link = layer.find_mut(id)?;
            if let Some(frame) = link.unsent.take() {
                return Some(frame);
            }
            let Phase::Open(open) = &link.phase else {
                return None;
            };
            let has_more = !link.outbound.is_sealed() || open.session.owes_key();
            if !has_more || link.base_data_frames >= SEALED_FRAMES_MAX {
                return None;
            }
            let text_bytes = link.outbound.waiting_bytes(LARGE_TEXT_BYTES);
            layer.pool.frame(text_bytes)
        };
        let link = layer.find_mut(id)?;
        let Phase::Open(open) = &mut link.phase else {
            return None;
        };
        let sealed = (open.session).seal(&mut link.outbound, SEALED_RECORDS, frame.bytes_mut());
        match sealed {
            Ok(frames) => {
                frame.token = frames;
                Some(frame)
            }
            Err(fault) => {
                layer.break_off(id, &fault);
                None
            }
        }
    }

    /// Tells peers whose links are over, and leaves them.
    pub(crate) fn end_links(&mut self) {
        loop {
            let next = self
                .layer
                .as_mut()
                .and_then(|layer| layer.endings.pop_front());
            let Some((id, alert)) = next else {
                return;
            };
            self.part(id, alert);
        }
    }

    /// Seals an alert, if nothing stands before it, and closes the link behind that.
    fn part(&mut self, id: LinkId, alert: Option<u8>) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        let until = layer.now + CLOSE_TIME_MAX;
        let Some(link) = layer.find_mut(id) else {
            return;
        };
        let is_prompt = link.base_data_frames == 0 && link.unsent.is_none();
        let mut said = Vec::new();
        if let (Phase::Open(open), Some(code), true) = (&mut link.phase, alert, is_prompt) {
            open.session.seal_alert(code, &mut said);
        }
        if said.is_empty() {
            return self.base.close(id, false);
        }
        link.is_leaving = true;
        layer.closings.push((until, id));
        self.say(id, &said);
    }

    /// Closes a link: behind what the base transport has of it, or at once.
    pub(crate) fn close_now(&mut self, id: LinkId, flush: bool) {
        let link = self.layer.as_mut().and_then(|layer| layer.find_mut(id));
        let Some(link) = link else {
            return;
        };
        link.over.get_or_insert(CloseReason::Local);
        if !flush || !matches!(link.phase, Phase::Open(_)) {
            return self.part(id, Some(CLOSE_NOTIFY));
        }
        let mut said = Vec::new();
        if let Phase::Open(open) = &mut link.phase {
            open.session.seal_alert(CLOSE_NOTIFY, &mut said);
        }
        self.say(id, &said);
        self.base.close(id, true);
    }

    /// Closes a link once its frames have left, or its handshake is over, within bounded time.
    pub(crate) fn close_in_time(&mut self, id: LinkId) {
        if let Some(layer) = &mut self.layer {
            let until = layer.now + CLOSE_TIME_MAX;
            layer.closings.push((until, id));
            layer.stain(id);
        }
    }

    /// Ends links that took too long.
    pub(crate) fn check_times(&mut self) {
        let Some(layer) = &mut self.layer else {
            return;
        };
        let now = layer.now;
        while let Some(&(until, id)) = layer.deadlines.front() {
            let is_pending = layer.find(id).is_some_and(|link| match &link.phase {
                Phase::Undecided { may_be_plain, .. } => !may_be_plain,
                Phase::Handshaking { .. } => true,
                Phase::Dialling | Phase::Plain | Phase::Open(_) | Phase::Over => false,
            });
            if is_pending && now < until {
                break;
            }
            layer.deadlines.pop_front();
            if is_pending && let Some(link) = layer.find_mut(id) {
                link.fail("TLS handshake with", "it took too long".to_owned());
                layer.counters.handshakes_failed.add(1);
                layer.endings.push_back((id, None));
            }
        }
        let mut index = 0;
        while let Some(&(until, id)) = layer.closings.get(index) {
            let link = layer.find(id);
            let is_closing = link.is_some_and(|link| link.over.is_none() || link.is_leaving);
            if is_closing && now < until {
                index += 1;
                continue;
            }
            layer.closings.swap_remove(index);
            if is_closing {
                layer.end(id, CloseReason::Local, None);
            }
        }
        self.end_links();
    }
}

/// How long a link that closes may take to seal its frames, or to finish its handshake.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Frames with records that the base transport has of one link at a time: one that it sends, one
/// that waits.
const SEALED_FRAMES_MAX: usize = 2;
