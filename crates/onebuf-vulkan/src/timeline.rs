//! Timelines for several devices: a semaphore that this driver exports or opens, and a stream that signals and follows it.

use std::any::Any;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use ash::vk;
use onebuf_core::backend::Timeline;
use onebuf_core::{Error, Result, Ticket};

use crate::shared::Shared;
use crate::stream::{StreamShared, VulkanStream};

/// The handle type of all of them.
const OPAQUE_FD: vk::ExternalSemaphoreHandleTypeFlags = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;

/// A timeline semaphore that another device has too.
pub(crate) struct VulkanTimeline {
    semaphore: vk::Semaphore,
    exportable: bool,
    /// Submits the waits and the signals.
    stream: VulkanStream,
    shared: Arc<Shared>,
}

impl VulkanTimeline {
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<VulkanTimeline> {
        check_support(shared)?;
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(OPAQUE_FD);
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind).push_next(&mut export);
        VulkanTimeline::new(shared, &info, true)
    }

    pub(crate) fn import(shared: &Arc<Shared>, fd: OwnedFd) -> Result<VulkanTimeline> {
        check_support(shared)?;
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        let timeline = VulkanTimeline::new(shared, &info, false)?;
        let Some(functions) = &shared.semaphore_fd else { return Err(unsupported()) };
        let import = vk::ImportSemaphoreFdInfoKHR::default()
            .semaphore(timeline.semaphore)
            .handle_type(OPAQUE_FD)
            .fd(fd.as_raw_fd());
        // SAFETY: the semaphore is new, and nothing waits for it.
        unsafe { functions.import_semaphore_fd(&import) }.map_err(shared.fail("vkImportSemaphoreFdKHR"))?;
        // The driver owns it from here on.
        let _ = fd.into_raw_fd();
        Ok(timeline)
    }

    fn new(
        shared: &Arc<Shared>,
        info: &vk::SemaphoreCreateInfo<'_>,
        exportable: bool,
    ) -> Result<VulkanTimeline> {
        let stream = VulkanStream { inner: StreamShared::create(shared)? };
        // SAFETY: timeline semaphores are enabled on every device that is opened, and the driver exports this kind.
        let semaphore =
            unsafe { shared.raw.create_semaphore(info, None) }.map_err(shared.fail("vkCreateSemaphore"))?;
        Ok(VulkanTimeline { semaphore, exportable, stream, shared: shared.clone() })
    }

    /// Queues that it gets a value once every ticket of `after` is reached.
    pub(crate) fn signal(&self, value: u64, after: &[Ticket]) -> Result<()> {
        self.stream.inner.pass(after, None, Some((self.semaphore, value))).map(drop)
    }

    /// A ticket that is reached once it has a value.
    pub(crate) fn follow(&self, value: u64) -> Result<Ticket> {
        self.stream.inner.pass(&[], Some((self.semaphore, value)), None)
    }
}

impl Timeline for VulkanTimeline {
    fn export(&self) -> Result<OwnedFd> {
        let (Some(functions), true) = (&self.shared.semaphore_fd, self.exportable) else {
            return Err(Error::unsupported(
                "export of a timeline",
                "it was imported; its maker exports it to others",
            ));
        };
        let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(self.semaphore).handle_type(OPAQUE_FD);
        // SAFETY: the semaphore was made to be exported so.
        let fd = unsafe { functions.get_semaphore_fd(&info) }.map_err(|code| {
            self.shared.fail("vkGetSemaphoreFdKHR")(code).or_no_descriptor_left("a timeline")
        })?;
        if fd < 0 {
            return Err(Error::Driver { call: "vkGetSemaphoreFdKHR", code: format!("the descriptor {fd}") });
        }
        // SAFETY: the driver made the descriptor for us; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::os("FD_CLOEXEC on an exported descriptor", &error.into()))?;
        Ok(fd)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VulkanTimeline {
    fn drop(&mut self) {
        // Its last signals and waits may be queued: it goes with the device.
        self.shared.retire_semaphore(self.semaphore);
    }
}

/// The backend's own type of a timeline of this device.
pub(crate) fn own<'a>(shared: &Arc<Shared>, timeline: &'a Arc<dyn Timeline>) -> Result<&'a VulkanTimeline> {
    let own: Option<&VulkanTimeline> = timeline.as_any().downcast_ref();
    own.filter(|own| Arc::ptr_eq(&own.shared, shared))
        .ok_or_else(|| Error::InvalidArgument("the timeline is another device's".into()))
}

fn check_support(shared: &Shared) -> Result<()> {
    if shared.semaphore_fd.is_some() && !shared.runs_in_others() { Ok(()) } else { Err(unsupported()) }
}

fn unsupported() -> Error {
    Error::unsupported(
        "a timeline for several devices",
        "the driver exports no timeline semaphore (VK_KHR_external_semaphore_fd)",
    )
}
