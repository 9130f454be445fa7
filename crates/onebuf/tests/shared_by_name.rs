//! Memory that may leave the process is its own, however it was asked for.

use onebuf::{Device, HandleKind, HostAccess, Semantic, Share};

#[test]
fn memory_shared_by_name_is_never_pooled() -> onebuf::Result<()> {
    if onebuf::no_device_here()? {
        println!("no device here, nothing was tested");
        return Ok(());
    }
    let device = Device::open_default()?;
    for by_name in [Some(Semantic::Process), Some(Semantic::Api), None] {
        let build = || {
            let builder = device.buffer::<u32>(1 << 16).host(HostAccess::ReadWrite);
            match by_name {
                Some(semantic) => builder.require(semantic).build(),
                None => builder.share(Share::Process).build(),
            }
        };
        let first = build()?;
        assert!(first.placement().exportable, "{}", first.placement());
        first.write()?.fill(0x005e_c2e7);
        first.export(HandleKind::OpaqueFd)?;
        drop(first);
        let before = device.memory().pool;
        let second = build()?;
        assert_eq!(device.memory().pool.hits, before.hits, "{by_name:?}");
        assert!(second.read()?.iter().all(|word| *word == 0), "{by_name:?}");
    }
    Ok(())
}
