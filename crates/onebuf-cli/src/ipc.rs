//! `onebuf serve`: the broker of shared buffers. `onebuf ipc`: questions to it.

use std::os::fd::AsFd;
use std::path::PathBuf;

use onebuf::core::error::human_bytes;
use onebuf_ipc::Peers;
use onebuf_ipc::broker::{Broker, Client, Entry, Limits, default_path};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Error, Result};
use crate::output::{note, print, print_json};

/// Options of `onebuf serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    socket: Socket,
    /// Serve this user too, by number (may be given several times; the socket's mode and folder must let them in)
    #[arg(long, value_name = "UID")]
    user: Vec<u32>,
    /// Connections in all [default: half the limit on open files]
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Names that each user may have published [default: a quarter of the limit on open files]
    #[arg(long, value_name = "N")]
    names: Option<usize>,
    /// MiB of memory that each user may have published [default: any]
    #[arg(long, value_name = "MIB")]
    mebibytes: Option<u64>,
}

/// Which broker.
#[derive(Debug, clap::Args)]
pub(crate) struct Socket {
    /// The broker's socket [default: onebuf.sock in XDG_RUNTIME_DIR, or in a folder of the user's below /tmp]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Socket {
    fn path(&self) -> Result<PathBuf> {
        Ok(self.socket.clone().map_or_else(default_path, Ok)?)
    }

    fn client(&self) -> Result<Client> {
        let path = self.path()?;
        match Client::connect(&path, &Peers::Anyone) {
            Err(onebuf::Error::PeerGone(_)) => Err(Error::Failed(format!(
                "no broker listens at {}; start one with `onebuf serve`",
                path.display()
            ))),
            other => Ok(other?),
        }
    }
}

/// `onebuf ipc`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the names, one line each
    Ls {
        #[command(flatten)]
        socket: Socket,
        /// Print JSON (schema onebuf.ipc/1)
        #[arg(long)]
        json: bool,
    },
    /// Show one name with its holders
    Inspect {
        /// The name
        name: String,
        #[command(flatten)]
        socket: Socket,
        /// Print JSON (schema onebuf.ipc/1)
        #[arg(long)]
        json: bool,
    },
    /// Take a name away; those who hold the memory keep it
    Release {
        /// The name
        name: String,
        #[command(flatten)]
        socket: Socket,
    },
}

#[derive(Serialize)]
struct Names {
    schema: &'static str,
    names: Vec<Entry>,
}

impl Names {
    fn new(names: Vec<Entry>) -> Names {
        Names { schema: "onebuf.ipc/1", names }
    }
}

/// Runs the broker until a signal asks it to stop.
pub(crate) fn serve(options: &ServeOptions) -> Result<()> {
    let path = options.socket.path()?;
    let mut limits = Limits::default();
    if let Some(clients) = options.clients {
        limits.clients = clients;
        limits.clients_of_user = clients;
    }
    limits.quota.names = options.names.unwrap_or(limits.quota.names);
    limits.quota.bytes = options.mebibytes.map_or(u64::MAX, |mebibytes| mebibytes.saturating_mul(1 << 20));
    let peers = if options.user.is_empty() {
        Peers::SameUser
    } else {
        let mut users = options.user.clone();
        users.push(rustix::process::geteuid().as_raw());
        Peers::Users(users)
    };
    let (stop, signal) = std::io::pipe().map_err(|error| Error::io("a pipe", error))?;
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let end = signal.try_clone().map_err(|error| Error::io("a pipe", error))?;
        signal_hook::low_level::pipe::register(number, end)
            .map_err(|error| Error::io("a handler of signals", error))?;
    }
    let broker = Broker::bind(&path, peers, limits)?;
    note(format_args!("serving at {}", path.display()));
    broker.run(stop.as_fd())?;
    note("stopped");
    Ok(())
}

/// Runs a subcommand of `onebuf ipc`.
pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Ls { socket, json } => {
            let names = socket.client()?.list()?;
            if *json { print_json(&Names::new(names)) } else { print(&table(&names)) }
        }
        Command::Inspect { name, socket, json } => {
            let entry = socket.client()?.inspect(name)?;
            if *json { print_json(&Names::new(vec![entry])) } else { print(&page(&entry)) }
        }
        Command::Release { name, socket } => {
            socket.client()?.release(name)?;
            Ok(())
        }
    }
}

fn table(names: &[Entry]) -> String {
    let width = names.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0);
    let line = |entry: &Entry| {
        let producer = if entry.alive { "" } else { " (gone)" };
        format!(
            "{:width$}  {:>9}  {:9}  held by {}, from process {}{producer}\n",
            entry.name,
            human_bytes(entry.view_bytes),
            entry.way.name(),
            entry.held,
            entry.producer.pid,
        )
    };
    names.iter().map(line).collect()
}

fn page(entry: &Entry) -> String {
    let Entry { name, producer, alive, way, view_bytes, allocation_bytes, held, holders } = entry;
    let gone = if *alive { "" } else { ", which is gone" };
    let mut text = format!(
        "{name}\n  shared: {} of an object of {}, as {}\n  producer: process {} of user {}{gone}\n  holders: {held}\n",
        human_bytes(*view_bytes),
        human_bytes(*allocation_bytes),
        way.name(),
        producer.pid,
        producer.uid,
    );
    for holder in holders {
        text += &format!("    process {} of user {}\n", holder.pid, holder.uid);
    }
    text
}
