//! `onebuf devices`: one line a device.

use onebuf::core::error::human_bytes;
use onebuf::{Adapter, DefaultChoice, DeviceUuid, Listing, Registry};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output::{note, print, print_json};

/// Options of `onebuf devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print JSON (schema onebuf.devices/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Devices<'a> {
    schema: &'static str,
    devices: Vec<Entry<'a>>,
    unavailable: Vec<Unavailable>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: String,
    backend: &'a str,
    kind: &'static str,
    name: &'a str,
    uuid: Option<DeviceUuid>,
    driver: &'a str,
    api: &'a str,
    memory_bytes: u64,
    /// Why it is taken when nobody names one.
    default: Option<&'a str>,
    /// Why it cannot be used.
    rejected: Option<&'a str>,
}

#[derive(Serialize)]
struct Unavailable {
    backend: &'static str,
    reason: String,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Options) -> Result<()> {
    let registry = Registry::system();
    let listing = registry.adapters();
    let choice = registry.default_choice();
    let default = choice.as_ref().ok();
    if options.json {
        print_json(&as_json(&listing, default))?;
    } else {
        print(&as_text(&listing, default))?;
    }
    if listing.adapters.iter().all(|adapter| adapter.rejected.is_some()) {
        note_unavailable(&listing);
        return Err(Error::Failed(
            "no usable device; `onebuf doctor` says what is missing and how to mend it".into(),
        ));
    }
    // There are devices, and none is the default: ONEBUF_DEVICE names one that is not there.
    if let Err(error) = choice {
        note(error);
    }
    Ok(())
}

/// Tells why backends could not start. Beside a device that can be used that is no news: few machines have all.
pub(crate) fn note_unavailable(listing: &Listing) {
    for (_, error) in &listing.unavailable {
        note(error);
    }
}

fn default_reason<'a>(adapter: &Adapter, default: Option<&'a DefaultChoice>) -> Option<&'a str> {
    default.filter(|choice| choice.id == adapter.info.id).map(|choice| choice.why.as_str())
}

fn as_json<'a>(listing: &'a Listing, default: Option<&'a DefaultChoice>) -> Devices<'a> {
    let entry = |adapter: &'a Adapter| Entry {
        id: adapter.info.id.to_string(),
        backend: &adapter.info.id.backend,
        kind: adapter.info.kind.name(),
        name: &adapter.info.name,
        uuid: adapter.info.uuid,
        driver: &adapter.info.driver,
        api: &adapter.info.api,
        memory_bytes: adapter.info.memory_bytes,
        default: default_reason(adapter, default),
        rejected: adapter.rejected.as_deref(),
    };
    let unavailable = listing.unavailable.iter();
    Devices {
        schema: "onebuf.devices/1",
        devices: listing.adapters.iter().map(entry).collect(),
        unavailable: unavailable
            .map(|(backend, error)| Unavailable { backend, reason: error.to_string() })
            .collect(),
    }
}

fn as_text(listing: &Listing, default: Option<&DefaultChoice>) -> String {
    let rows: Vec<[String; 6]> = listing
        .adapters
        .iter()
        .map(|adapter| {
            let info = &adapter.info;
            let why = default_reason(adapter, default);
            let mark = if why.is_some() { "*" } else { " " };
            let last = match (&adapter.rejected, why) {
                (Some(reason), _) => format!("rejected: {reason}"),
                (None, Some(why)) => format!("default: {why}"),
                (None, None) => String::new(),
            };
            [
                format!("{mark} {}", info.id),
                info.kind.to_string(),
                info.name.clone(),
                info.driver.clone(),
                human_bytes(info.memory_bytes),
                last,
            ]
        })
        .collect();
    let mut text = String::new();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
