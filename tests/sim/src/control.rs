//! What tests tell a simulation while it runs, and what it noted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use onebuf_core::{Error, Result, Ticket};
use parking_lot::Mutex;

/// A call of the contract that can be told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Allocate,
    ImportHost,
    Import,
    Export,
    Compile,
    CreateStream,
    CreateGraph,
    UpdateGraph,
    Submit,
    Replay,
    Event,
    Flush,
    Invalidate,
    Wait,
    IsDone,
}

/// What tests tell a simulation while it runs, and what it noted.
#[derive(Default)]
pub struct Control {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failing: HashMap<Call, Error>,
    calls: HashMap<Call, u64>,
    lost: bool,
    lost_after: Option<u64>,
    slow_submit: Duration,
    slow_work: Duration,
    due: HashMap<Ticket, Instant>,
    violations: Vec<String>,
}

impl Control {
    /// The next call of this sort fails with `error`.
    pub fn fail(&self, call: Call, error: Error) {
        self.state.lock().failing.insert(call, error);
    }

    /// The device is lost after this many submissions more.
    pub fn lose_after(&self, submissions: u64) {
        self.state.lock().lost_after = Some(submissions);
    }

    /// The driver takes this long for each submission.
    pub fn slow_submissions(&self, each: Duration) {
        self.state.lock().slow_submit = each;
    }

    /// Work is done this long after its submission, at the earliest.
    pub fn slow_work(&self, each: Duration) {
        self.state.lock().slow_work = each;
    }

    /// How many calls of this sort there were.
    pub fn calls(&self, call: Call) -> u64 {
        self.state.lock().calls.get(&call).copied().unwrap_or(0)
    }

    /// What should not have come as far as a driver. Takes the notes.
    pub fn violations(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().violations)
    }

    pub(crate) fn violation(&self, what: String) {
        self.state.lock().violations.push(what);
    }

    /// Counts a call, and fails where it was told to.
    pub(crate) fn enter(&self, call: Call) -> Result<()> {
        let mut state = self.state.lock();
        *state.calls.entry(call).or_default() += 1;
        if matches!(call, Call::Submit | Call::Replay) {
            match &mut state.lost_after {
                Some(0) => state.lost = true,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        if state.lost && !matches!(call, Call::Flush | Call::Invalidate) {
            return Err(Error::DeviceLost("the simulation was told to lose it".into()));
        }
        match state.failing.remove(&call) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// A submission has been made: the driver takes its time, and the work will.
    pub(crate) fn submitted(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        let (submit, work) = (state.slow_submit, state.slow_work);
        if !work.is_zero() {
            state.due.insert(ticket, Instant::now() + work);
        }
        drop(state);
        if !submit.is_zero() {
            std::thread::sleep(submit);
        }
    }

    /// How long the work of a ticket still pretends to run.
    pub(crate) fn time_left(&self, ticket: Ticket) -> Duration {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.due.retain(|_, due| *due > now);
        let due = state.due.iter().filter(|(t, _)| t.stream == ticket.stream && t.value <= ticket.value);
        due.map(|(_, due)| due.duration_since(now)).max().unwrap_or_default()
    }
}
