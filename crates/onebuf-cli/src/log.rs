//! What the library logs, on stderr; and what the validation layer said, for self-tests.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The library's target for messages of the validation layer.
const VALIDATION: &str = "onebuf::validation";

/// The messages of the validation layer so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Validation(Arc<Mutex<Vec<String>>>);

impl Validation {
    /// The first message, if there is one.
    pub(crate) fn first(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }
}

/// Starts the log at the level of `ONEBUF_LOG`.
pub(crate) fn start() -> Validation {
    let level = std::env::var("ONEBUF_LOG").ok().and_then(|level| level.parse().ok());
    let text = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_filter(level.unwrap_or(LevelFilter::ERROR));
    let validation = Validation::default();
    // A subscriber that is there already keeps its place.
    let _ = tracing_subscriber::registry().with(text).with(validation.clone()).try_init();
    validation
}

impl<S: Subscriber> Layer<S> for Validation {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != VALIDATION || *event.metadata().level() != Level::ERROR {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message.0);
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
