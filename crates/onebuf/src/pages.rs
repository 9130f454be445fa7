//! What the system lets this process do with pages that it has, as `/proc/self/maps` says.

use onebuf_core::backend::PageAccess;
use onebuf_core::{Error, Result};

/// Refuses pages that may not be accessed as is said. Where the system does not tell, the caller's word stands.
pub(crate) fn check(address: u64, bytes: u64, access: PageAccess) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(Allowed { read, write }) = allowed(&maps, address, address.saturating_add(bytes)) else {
        return Ok(());
    };
    let pages = format!("{bytes} byte(s) of host memory at {address:#x} cannot be imported");
    match access {
        _ if !read => Err(Error::InvalidArgument(format!("{pages}: the program may not read all of them"))),
        PageAccess::ReadWrite if !write => Err(Error::InvalidArgument(format!(
            "{pages} to be written: the program may not write all of them; map them writable, or take \
             `Device::import_host_read_only`"
        ))),
        _ => Ok(()),
    }
}

/// What is allowed everywhere in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowed {
    read: bool,
    write: bool,
}

/// Lines are `start-end rwxp ...`, in ascending order. `None` where they do not cover the range.
fn allowed(maps: &str, start: u64, end: u64) -> Option<Allowed> {
    let mut all = Allowed { read: true, write: true };
    let mut covered = start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        if to <= covered {
            continue;
        }
        if from > covered || covered >= end {
            break;
        }
        let flags = words.next()?;
        all.read &= flags.starts_with('r');
        all.write &= flags.get(1..2) == Some("w");
        covered = to;
    }
    (covered >= end).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00001000-00003000 r--p 00000000 08:01 42 /usr/lib/a library
00003000-00005000 rw-p 00002000 08:01 42 /usr/lib/a library
00005000-00006000 ---p 00000000 00:00 0
00008000-0000a000 rw-s 00000000 00:01 7 /dev/shm/x (deleted)
";

    #[test]
    fn a_range_is_allowed_what_all_its_mappings_are() {
        let find = |start, end| allowed(MAPS, start, end).map(|a| (a.read, a.write));
        assert_eq!(find(0x1000, 0x2000), Some((true, false)));
        assert_eq!(find(0x3000, 0x5000), Some((true, true)));
        assert_eq!(find(0x2000, 0x4000), Some((true, false)));
        assert_eq!(find(0x4000, 0x6000), Some((false, false)));
        assert_eq!(find(0x9000, 0xa000), Some((true, true)));
    }

    #[test]
    fn what_is_not_covered_is_not_known() {
        assert_eq!(allowed(MAPS, 0x0, 0x2000), None);
        assert_eq!(allowed(MAPS, 0x5000, 0x9000), None);
        assert_eq!(allowed(MAPS, 0x9000, 0xb000), None);
        assert_eq!(allowed("", 0x1000, 0x2000), None);
        assert_eq!(allowed("nonsense", 0x1000, 0x2000), None);
    }
}
