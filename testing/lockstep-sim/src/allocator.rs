//! The allocator of the simulator: mimalloc behind a small stack of freed blocks per thread and size.
//!
//! mimalloc hands out each free block of a page before it hands out a block again. The working set of a simulation then
//! no longer fits in a processor's cache. Here the block that was freed last is handed out first.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::null_mut;

/// Sizes are rounded up to a multiple of this, which is also the alignment.
const GRAIN: usize = 16;
/// Larger blocks come from mimalloc.
const SIZES: usize = 64;
/// Blocks that a stack holds.
const HELD: usize = 64;

/// Freed blocks of one size.
struct Stack {
    count: Cell<usize>,
    blocks: [Cell<*mut u8>; HELD],
}

thread_local! {
    /// Of each size, in grains. When a thread ends, its blocks stay allocated: threads live as long as the program.
    static FREED: [Stack; SIZES + 1] =
        const { [const { Stack { count: Cell::new(0), blocks: [const { Cell::new(null_mut()) }; HELD] } }; SIZES + 1] };
}

/// See the module's documentation.
pub(crate) struct Recycling;

/// The size of a block in grains, if stacks hold such blocks.
fn grains(layout: Layout) -> Option<usize> {
    let grains = layout.size().div_ceil(GRAIN);
    (layout.align() <= GRAIN && grains <= SIZES).then_some(grains)
}

/// The layout of a block of so many grains.
fn block(grains: usize) -> Layout {
    let layout = Layout::from_size_align(grains.max(1) * GRAIN, GRAIN);
    layout.unwrap_or(Layout::new::<u128>())
}

// SAFETY: each block on a stack came from mimalloc with the layout of its stack, and has no owner.
unsafe impl GlobalAlloc for Recycling {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(grains) = grains(layout) else {
            // SAFETY: the caller's promises.
            return unsafe { MiMalloc.alloc(layout) };
        };
        FREED.with(|freed| {
            let Stack { count, blocks } = &freed[grains];
            match count.get() {
                // SAFETY: the layout's size is not 0.
                0 => unsafe { MiMalloc.alloc(block(grains)) },
                held => {
                    count.set(held - 1);
                    blocks[held - 1].get()
                }
            }
        })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(grains) = grains(layout) else {
            // SAFETY: the caller's promises; blocks of this layout come from mimalloc.
            return unsafe { MiMalloc.dealloc(at, layout) };
        };
        FREED.with(|freed| {
            let Stack { count, blocks } = &freed[grains];
            match count.get() {
                // SAFETY: it came from mimalloc with this layout.
                HELD => unsafe { MiMalloc.dealloc(at, block(grains)) },
                held => {
                    blocks[held].set(at);
                    count.set(held + 1);
                }
            }
        });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        match (grains(layout), grains(wanted)) {
            // SAFETY: the caller's promises; both come from mimalloc.
            (None, None) => unsafe { MiMalloc.realloc(at, layout, size) },
            (Some(old), Some(new)) if old == new => at,
            // SAFETY: the new block is another one, and both have at least the bytes copied.
            _ => unsafe {
                let to = self.alloc(wanted);
                if !to.is_null() {
                    at.copy_to_nonoverlapping(to, layout.size().min(size));
                    self.dealloc(at, layout);
                }
                to
            },
        }
    }
}
