//! Streams and graphs, which put the real memory in the place of the simulated.

use std::any::Any;
use std::sync::Arc;

use onebuf_core::backend::{Event, Graph, Launch, Part, Stream, Work};
use onebuf_core::{Error, Result, StreamId, Ticket};

use crate::control::Call;
use crate::memory::real;
use crate::watch::Watch;

pub(crate) struct SimStream {
    pub(crate) inner: Arc<dyn Stream>,
    pub(crate) watch: Arc<Watch>,
}

/// Parts of real memory, in the order of the simulated ones.
pub(crate) fn real_parts<'a>(parts: &[Part<'a>]) -> Result<Vec<Part<'a>>> {
    parts.iter().map(|part| Ok(Part { memory: real(part.memory)?, ..*part })).collect()
}

/// The parts of a piece of work.
pub(crate) fn parts_of<'a>(work: &Work<'a>) -> Vec<Part<'a>> {
    match work {
        Work::Launch(launch) => launch.bindings.to_vec(),
        Work::Copy { from, to } => vec![*from, *to],
        Work::Fill { to, .. } => vec![*to],
    }
}

/// The same work on other parts.
pub(crate) fn with_parts<'a>(work: &Work<'a>, parts: &'a [Part<'a>]) -> Work<'a> {
    match (work, parts) {
        (Work::Launch(launch), bindings) => Work::Launch(Launch { bindings, ..*launch }),
        (Work::Copy { .. }, [from, to]) => Work::Copy { from: *from, to: *to },
        (Work::Fill { word, .. }, [to]) => Work::Fill { to: *to, word: *word },
        (other, _) => *other,
    }
}

impl Stream for SimStream {
    fn id(&self) -> StreamId {
        self.inner.id()
    }

    #[allow(unsafe_code)]
    unsafe fn submit(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        self.watch.control.enter(Call::Submit)?;
        self.watch.work(&work);
        let parts = real_parts(&parts_of(&work))?;
        // SAFETY: the caller's promise is the same: the real memory has the simulated one's size.
        let ticket = unsafe { self.inner.submit(with_parts(&work, &parts), after)? };
        self.watch.control.submitted(ticket);
        Ok(ticket)
    }

    #[allow(unsafe_code)]
    unsafe fn replay(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        self.watch.control.enter(Call::Replay)?;
        let graph: Option<&SimGraph> = graph.as_any().downcast_ref();
        let graph =
            graph.ok_or_else(|| Error::InvalidArgument("the graph is not one of this simulation".into()))?;
        // SAFETY: the caller's promise is the same.
        let ticket = unsafe { self.inner.replay(&graph.inner, after)? };
        self.watch.control.submitted(ticket);
        Ok(ticket)
    }

    fn event(&self) -> Result<Arc<dyn Event>> {
        self.watch.control.enter(Call::Event)?;
        self.inner.event()
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn last(&self) -> Ticket {
        self.inner.last()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(crate) struct SimGraph {
    pub(crate) inner: Arc<dyn Graph>,
    pub(crate) watch: Arc<Watch>,
}

impl Graph for SimGraph {
    fn len(&self) -> usize {
        self.inner.len()
    }

    #[allow(unsafe_code)]
    unsafe fn update(&self, node: usize, work: Work<'_>) -> Result<()> {
        self.watch.control.enter(Call::UpdateGraph)?;
        self.watch.work(&work);
        let parts = real_parts(&parts_of(&work))?;
        // SAFETY: as for a submission.
        unsafe { self.inner.update(node, with_parts(&work, &parts)) }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
