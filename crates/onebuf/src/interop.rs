//! Where other APIs and processes meet a buffer: imports, memory made elsewhere, work submitted elsewhere.

use std::sync::Arc;

use bytemuck::Pod;
use onebuf_core::backend::{Export, Memory};
use onebuf_core::placement::{Candidate, Ranking};
use onebuf_core::{Error, HandleKind, HostAccess, Placement, Result, Ticket, Tickets};

use crate::arg::{Arg, ArgKind, Span};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::order::{self, Order, Uses};
use crate::storage::{Origin, Storage, Wish};

impl Device {
    /// A buffer of `len` elements in memory that another process, or another API, exported.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the object is smaller than that, or is none that this device can open.
    ///
    /// # Safety
    /// Hazards order what goes through this buffer alone. The other holders of the memory, those in this process among
    /// them, do not write it while this side reads, nor touch it while this side writes.
    pub unsafe fn import_buffer<T: Pod>(&self, export: Export, len: usize) -> Result<Buffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        if bytes > export.size_bytes || export.size_bytes > export.allocation_bytes {
            return Err(Error::InvalidArgument(format!(
                "{len} element(s) have {bytes} bytes; the exported buffer has {} in an allocation of {}",
                export.size_bytes, export.allocation_bytes
            )));
        }
        Ok(Buffer::new(self.import(export, bytes, false)?))
    }

    /// The storage of what was exported, of which `bytes` are used; `across` where another device of this process did.
    pub(crate) fn import(&self, export: Export, bytes: u64, across: bool) -> Result<Arc<Storage>> {
        let profile = &self.shared.profile;
        let way = export.handle;
        let wish = Wish { host: HostAccess::ReadWrite, process: true, ..Wish::default() };
        if way == HandleKind::Memfd {
            let alignment = self.info().limits.host_import_alignment_bytes.max(1);
            let pages = onebuf_ipc::memfd::map_export(&export, alignment)?;
            return crate::share::on_pages(self, pages, bytes, wish, None, Vec::new());
        }
        let kind = export.kind;
        if !across && kind >= profile.memory.len() {
            let kinds = profile.memory.len();
            return Err(Error::InvalidArgument(format!(
                "the memory is of kind {kind}; this device has {kinds}"
            )));
        }
        let (memory, kind) = if across {
            self.shared.raw.import_across(export)?
        } else {
            (self.shared.raw.import(export)?, kind)
        };
        let staging =
            memory.host_pointer().is_none().then(|| onebuf_core::placement::staging_kind(profile)).flatten();
        let candidate = Candidate { kind, staging, exportable: true };
        let ranking = Ranking { candidates: vec![candidate.clone()], rejected: Vec::new() };
        let mut placement = Placement::new(profile, &wish.intent(bytes), &ranking, &candidate);
        placement.way = Some(way);
        check_size(&*memory, bytes)?;
        Ok(Storage::given(self, memory, Origin::Own, bytes, wish, None, placement))
    }

    /// A buffer of `len` elements in memory that the backend made in a way of its own, such as a `wgpu::Buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the memory is smaller than that.
    ///
    /// # Safety
    /// The memory is of this device's backend, and as for [`Device::import_buffer`]; [`Device::order_external`] puts other
    /// work in order with onebuf's.
    pub unsafe fn buffer_from_memory<T: Pod>(
        &self,
        memory: Arc<dyn Memory>,
        len: usize,
        placement: Placement,
    ) -> Result<Buffer<T>> {
        let wish = Wish { host: placement.asked.host, ..Wish::default() };
        self.given(memory, len, wish, placement)
    }

    /// Submits work that does not go through onebuf, in order with work that does. `submit` is called with the
    /// tickets that the work must wait for, and gives the ticket that is reached when it is done. `uses` lists the buffers
    /// ([`Arg::buffer`]), each with whether it is written.
    ///
    /// # Errors
    /// [`Error::Busy`] while a host guard on a buffer lives that conflicts; [`Error::InvalidArgument`] where a buffer is
    /// another device's; those of `submit`.
    ///
    /// # Safety
    /// The work waits for the tickets it is given, touches the buffers only as stated, and is done when its ticket is
    /// reached. `submit` does not use the buffers' guards and submits nothing else to onebuf.
    pub unsafe fn order_external(
        &self,
        uses: &[(Arg<'_>, bool)],
        submit: impl FnOnce(&[Ticket]) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut all = Uses::new();
        for (buffer, writes) in uses {
            let ArgKind::Buffer(Span { storage, .. }) = buffer.0 else {
                return Err(Error::InvalidArgument(
                    "only buffers need an order; an immediate value was given".into(),
                ));
            };
            self.check_same(&storage.device, || storage.describe())?;
            if *writes {
                storage.check_writable()?;
            }
            order::add(&mut all, storage, *writes);
        }
        // Known before it is remembered: who finds it in the hazards must know whose it is.
        let submit = |after: &[Ticket]| submit(after).inspect(|ticket| self.know_stream(ticket.stream));
        order::submit(&self.shared, &mut all, Tickets::new(), Order::ByHazards, submit)
    }

    fn given<T: Pod>(
        &self,
        memory: Arc<dyn Memory>,
        len: usize,
        wish: Wish,
        placement: Placement,
    ) -> Result<Buffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        check_size(&*memory, bytes)?;
        Ok(Buffer::new(Storage::given(self, memory, Origin::Own, bytes, wish, None, placement)))
    }
}

impl<T: Pod> Buffer<T> {
    /// The backend's memory, in which the buffer begins at [`Buffer::offset_bytes`], for interoperation.
    ///
    /// # Safety
    /// As for [`Device::raw`].
    pub unsafe fn raw(&self) -> &Arc<dyn Memory> {
        &self.storage.memory
    }
}

fn check_size(memory: &dyn Memory, bytes: u64) -> Result<()> {
    let has = memory.size_bytes();
    if has >= bytes {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{bytes} bytes were asked for; the memory has {has}")))
}

fn bytes_of<T>(len: usize) -> Result<u64> {
    let element = size_of::<T>() as u64;
    if element == 0 {
        return Err(Error::InvalidArgument("elements without bytes cannot be put in a buffer".into()));
    }
    (len as u64).checked_mul(element).ok_or_else(|| {
        Error::InvalidArgument(format!("{len} elements of {element} bytes are more than 64 bits can count"))
    })
}
