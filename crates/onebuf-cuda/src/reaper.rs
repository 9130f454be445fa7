//! The thread that waits for the work of streams whose user is gone.
//!
//! It is joined with the device: a thread that is left alone could be the one to let go of the driver's last objects, while
//! the process runs its exit handlers and the driver is half gone.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Takes values, and finishes each on a thread of its own.
pub(crate) struct Reaper<T> {
    finish: fn(T),
    state: Mutex<State<T>>,
}

enum State<T> {
    /// Nothing came yet.
    Idle,
    Running {
        sender: Sender<T>,
        thread: JoinHandle<()>,
    },
    /// Nobody is left to join a thread.
    Closed,
}

impl<T: Send + 'static> Reaper<T> {
    pub(crate) fn new(finish: fn(T)) -> Reaper<T> {
        Reaper { finish, state: Mutex::new(State::Idle) }
    }

    /// Finishes a value on the thread; here where there is none.
    pub(crate) fn give(&self, value: T) {
        let mut state = self.state.lock();
        if let State::Idle = *state {
            *state = self.start();
        }
        let here = match &*state {
            State::Running { sender, .. } => sender.send(value).err().map(|refused| refused.0),
            State::Idle | State::Closed => Some(value),
        };
        drop(state);
        if let Some(value) = here {
            (self.finish)(value);
        }
    }

    fn start(&self) -> State<T> {
        let (sender, receiver) = channel();
        let finish = self.finish;
        let body = move || receiver.into_iter().for_each(finish);
        match std::thread::Builder::new().name("onebuf-cuda-reaper".into()).spawn(body) {
            Ok(thread) => State::Running { sender, thread },
            Err(error) => {
                tracing::debug!(%error, "no thread that waits for dropped streams");
                State::Idle
            }
        }
    }

    /// Waits until everything that was given is finished. What is given from here on is finished by the giver.
    pub(crate) fn close(&self) {
        let state = std::mem::replace(&mut *self.state.lock(), State::Closed);
        let State::Running { sender, thread } = state else { return };
        drop(sender);
        // The thread itself may let go of the last one who would join it.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the thread that waits for dropped streams panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    /// A value that takes a while, and notes who finished it.
    struct Slow(Arc<Mutex<Vec<ThreadId>>>);

    impl Slow {
        fn finish(self) {
            std::thread::sleep(Duration::from_millis(20));
            self.0.lock().push(std::thread::current().id());
        }
    }

    #[test]
    fn closing_waits_for_all_that_was_given() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let reaper = Reaper::new(Slow::finish);
        (0..5).for_each(|_| reaper.give(Slow(done.clone())));
        let here = std::thread::current().id();
        reaper.close();
        assert_eq!(done.lock().len(), 5);
        assert!(done.lock().iter().all(|&thread| thread != here));
        assert_eq!(Arc::strong_count(&done), 1, "the thread still has one");
        // Nobody would join a thread from here on.
        reaper.give(Slow(done.clone()));
        assert_eq!(done.lock().last(), Some(&here));
        reaper.close();
    }

    #[test]
    fn the_last_owner_may_go_on_the_thread_itself() {
        static CLOSED: AtomicU32 = AtomicU32::new(0);
        struct Owner(Arc<Reaper<Owner>>);
        let reaper = Arc::new(Reaper::new(|owner: Owner| {
            owner.0.close();
            CLOSED.fetch_add(1, Ordering::Release);
        }));
        reaper.give(Owner(reaper.clone()));
        drop(reaper);
        let start = std::time::Instant::now();
        while CLOSED.load(Ordering::Acquire) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "the thread waits for itself");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
