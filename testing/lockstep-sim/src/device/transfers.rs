//! Copies of the device from another member: requests, donors, and both sides of each copy.

use super::machine::Device;
use super::side::{Side, Stop};
use super::world::{DeviceWorld, Event};
use crate::history::{Check, Violation, hold};
use crate::profile::{MS, SECOND};
use bytes::Bytes;
use lockstep_block::copy::CopyError;
use lockstep_block::copy::pace::Pace;
use lockstep_block::copy::receiver::greet;
use lockstep_block::copy::wire::Token;
use lockstep_block::device::resync::{Source, Wholeness};
use lockstep_core::{Gtid, Micros};
use std::time::Instant;

/// As in the program: a joiner asks for another donor after this time.
const ASK_ANEW: Micros = 15 * SECOND;
/// As in the program: the device file of a donor must have what it has taken within this time.
const WRITTEN_WITHIN: Micros = 60 * SECOND;

/// A process: its machine, and its number there.
type Place = (usize, u64);

/// A donation that waits for the device file.
pub(super) struct Donation {
    id: u64,
    joiner: Place,
    source: Source,
    until: Micros,
}

/// A copy under way. Its two sides are the donor's and the joiner's.
pub(super) struct Transfer {
    number: u64,
    donation: u64,
    places: [Place; 2],
    /// `None`: the side has ended.
    sides: [Option<Side>; 2],
    /// When everything that was sent to a side has arrived.
    arrived_at: [Micros; 2],
    /// The connection is lost.
    is_lost: bool,
}

const DONOR: usize = 0;
const JOINER: usize = 1;

fn request(place: Place) -> Bytes {
    let (at, life) = place;
    Bytes::from([(at as u64).to_le_bytes(), life.to_le_bytes()].concat())
}

fn place(request: &[u8]) -> Option<Place> {
    let (at, life) = request.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*at) as usize, u64::from_le_bytes(*life.first_chunk()?)))
}

impl DeviceWorld {
    /// The log does not continue a copy.
    pub(super) fn state_needed(&mut self, at: usize, device: &mut Device) {
        self.machines[at].is_whole = false;
        device.replica.needs_state();
        self.needs_state += 1;
        self.ask_for_state(at, device);
    }

    fn ask_for_state(&mut self, at: usize, device: &mut Device) {
        device.asked_at = self.now;
        let machine = &mut self.machines[at];
        if let Some(process) = &mut machine.process {
            process.node.request_state(request((at, process.life)));
        }
        self.say(at, format_args!("asks for the device"));
        self.wake(at, 0);
    }

    /// A joiner without a donor asks again. A donor begins once its file has what it has taken.
    pub(super) fn transfers_step(&mut self, at: usize, device: &mut Device) -> Check {
        let life = self.machines[at].life();
        let is_joining = |transfer: &Transfer| transfer.places[JOINER] == (at, life);
        if device.replica.status().wholeness == Wholeness::Needed
            && !self.machines[at].is_whole
            && self.now >= device.asked_at + ASK_ANEW
            && !self.transfers.iter().any(is_joining)
        {
            self.ask_for_state(at, device);
        }
        for donation in std::mem::take(&mut device.donations) {
            if device.replica.has_written(&donation.source) {
                self.begin_transfer(at, device, donation)?;
            } else if self.now >= donation.until {
                self.donation_ends(at, donation.id, None);
            } else {
                device.donations.push(donation);
            }
        }
        Ok(())
    }

    /// The leader has chosen this member as a donor.
    pub(super) fn donate(&mut self, at: usize, device: &mut Device, id: u64, request: &[u8]) {
        match (place(request), device.replica.begin_source()) {
            (Some(joiner), Ok(source)) => {
                let until = self.now + WRITTEN_WITHIN;
                device.donations.push(Donation { id, joiner, source, until });
            }
            (_, source) => {
                self.say(at, format_args!("does not donate: {:?}", source.err()));
                self.donation_ends(at, id, None);
            }
        }
    }

    fn donation_ends(&mut self, at: usize, id: u64, position: Option<Gtid>) {
        if let Some(process) = &mut self.machines[at].process {
            match position {
                Some(position) => process.node.donation_done(id, position),
                None => process.node.donation_failed(id),
            }
        }
        self.wake(at, 0);
    }

    fn begin_transfer(&mut self, at: usize, device: &Device, donation: Donation) -> Check {
        let Donation { id, joiner, source, .. } = donation;
        let peer = &self.machines[joiner.0];
        let target = peer.process.as_ref().filter(|process| process.life == joiner.1);
        let target = target.and_then(|process| Some(process.device.as_ref()?.replica.clone()));
        let reachable = self.net.passes(at, joiner.0) && self.net.passes(joiner.0, at);
        let Some(target) = target.filter(|_| reachable && joiner.0 != at) else {
            self.donation_ends(at, id, None);
            return Ok(());
        };
        let number = self.number();
        let token = Token([number as u8; 32]);
        let names = [at, joiner.0].map(|at| self.machines[at].hello.name.clone());
        let replica = device.replica.clone();
        let donor = Side::start(move |stream| {
            let [donor, joiner] = &names;
            // Without a rate it never waits by the real clock.
            let pace = Pace::new(0, Instant::now());
            replica
                .send_copy(stream, source, token, (donor.as_str(), joiner.as_str()), pace)
                .map(|(position, _)| position)
        });
        let joins = Side::start(move |stream| {
            let hello = greet(stream, "disk", &token)?;
            target.receive_copy(stream, &hello)
        });
        let (Ok(donor), Ok(joins)) = (donor, joins) else {
            return Err(Violation { rule: "threads can be started", what: "a copy".into() });
        };
        self.say(at, format_args!("connects to n{} for copy {number}", joiner.0 + 1));
        self.transfers.push(Transfer {
            number,
            donation: id,
            places: [(at, self.machines[at].life()), joiner],
            sides: [Some(donor), Some(joins)],
            arrived_at: [self.now; 2],
            is_lost: false,
        });
        self.queue.push(self.now + MS, Event::Transfer { number });
        Ok(())
    }

    fn transfer(&mut self, number: u64) -> Option<&mut Transfer> {
        self.transfers.iter_mut().find(|transfer| transfer.number == number)
    }

    /// Bytes arrive at a side.
    pub(super) fn copy_arrives(&mut self, number: u64, side: usize, bytes: &[u8]) {
        if let Some(transfer) = self.transfer(number).filter(|transfer| !transfer.is_lost)
            && let Some(side) = &mut transfer.sides[side]
        {
            side.arrived.extend(bytes);
        }
    }

    /// A side notices that the connection has ended.
    pub(super) fn copy_down(&mut self, number: u64, side: usize) {
        if let Some(transfer) = self.transfer(number)
            && let Some(side) = &mut transfer.sides[side]
        {
            side.closed = true;
        }
    }

    /// Both sides of a copy go on.
    pub(super) fn transfer_step(&mut self, number: u64) -> Check {
        let first = self.rng.below(2) as usize;
        for side in [first, 1 - first] {
            self.side_step(number, side)?;
        }
        let over = |transfer: &Transfer| transfer.sides.iter().all(Option::is_none);
        if self.transfer(number).is_some_and(|transfer| over(transfer)) {
            self.transfers.retain(|transfer| transfer.number != number);
        } else if self.transfer(number).is_some() {
            let after = self.rng.between(20, self.profile.device_step);
            self.queue.push(self.now + after, Event::Transfer { number });
        }
        Ok(())
    }

    fn side_step(&mut self, number: u64, side: usize) -> Check {
        let now = self.now;
        let Some(transfer) = self.transfers.iter_mut().find(|transfer| transfer.number == number) else {
            return Ok(());
        };
        let (at, life) = transfer.places[side];
        let Some(thread) = transfer.sides[side].as_mut().filter(|side| side.is_ready()) else {
            return Ok(());
        };
        let machine = &self.machines[at];
        // A write to a full disk waits. The thread would do that by the real clock.
        if machine.life() != life || machine.paused_until > now || machine.disk.is_full() {
            return Ok(());
        }
        if let Some(device) = machine.process.as_ref().and_then(|process| process.device.as_ref()) {
            device.set_times(&machine.clock, now);
        }
        let Some((sent, stop)) = thread.step() else {
            return Err(Violation { rule: "no panic", what: format!("n{}: copy {number}", at + 1) });
        };
        self.trace.mix(sent.len() as u64);
        if !sent.is_empty() {
            self.send_copy(number, side, sent);
        }
        match stop {
            Stop::Disk | Stop::Read => Ok(()),
            Stop::Ended(result) => self.side_ends(number, side, result),
        }
    }

    fn send_copy(&mut self, number: u64, side: usize, bytes: Vec<u8>) {
        let Some(transfer) = self.transfers.iter_mut().find(|transfer| transfer.number == number) else {
            return;
        };
        if transfer.is_lost {
            return;
        }
        let (from, to) = (transfer.places[side].0, transfer.places[1 - side].0);
        if !self.net.passes(from, to) {
            self.lose_transfer(number, 2 * SECOND);
            return;
        }
        let later = self.profile.heartbeat;
        let arrival = self.net.send_in_order(self.now, from, to, 40 + bytes.len(), later, &mut self.rng);
        // The members' own connection may break meanwhile, and a new one has an order of its own.
        let arrival = arrival.max(transfer.arrived_at[1 - side]);
        transfer.arrived_at[1 - side] = arrival;
        self.queue.push(arrival, Event::CopyBytes { number, side: 1 - side, bytes });
    }

    /// The connection of a copy breaks. Both sides notice it some time later.
    fn lose_transfer(&mut self, number: u64, longest: Micros) {
        let after = [0; 2].map(|_| self.rng.between(50, longest));
        let now = self.now;
        let Some(transfer) = self.transfer(number) else { return };
        transfer.is_lost = true;
        for (side, after) in after.into_iter().enumerate() {
            self.queue.push(now + after, Event::CopyDown { number, side });
        }
    }

    /// A process ends, and with it its sides of copies.
    pub(super) fn kill_sides(&mut self, at: usize, longest: Micros) {
        let place = (at, self.machines[at].life());
        let mut numbers = Vec::new();
        for transfer in &mut self.transfers {
            for side in [DONOR, JOINER] {
                if transfer.places[side] == place && transfer.sides[side].take().is_some() {
                    numbers.push(transfer.number);
                }
            }
        }
        numbers.into_iter().for_each(|number| self.lose_transfer(number, longest));
    }

    fn side_ends(&mut self, number: u64, side: usize, result: Result<Gtid, CopyError>) -> Check {
        let Some(transfer) = self.transfer(number) else { return Ok(()) };
        let ((at, _), id) = (transfer.places[side], transfer.donation);
        transfer.sides[side] = None;
        // The peer takes what was sent before.
        let down = transfer.arrived_at[1 - side] + MS;
        let name = if side == DONOR { "donor" } else { "joiner" };
        self.queue.push(down.max(self.now), Event::CopyDown { number, side: 1 - side });
        self.say(at, format_args!("copy {number} ends at the {name}: {result:?}"));
        if side == DONOR {
            self.donation_ends(at, id, result.ok());
            return Ok(());
        }
        match result {
            Ok(position) => self.copied(at, position),
            Err(CopyError::Device(error)) => self.ends_itself(at, &error.to_string()),
            Err(_) => {
                let now = self.now;
                if let Some(device) =
                    self.machines[at].process.as_mut().and_then(|process| process.device.as_mut())
                {
                    device.asked_at = now;
                }
                Ok(())
            }
        }
    }

    /// A joiner has all that its donor sends.
    fn copied(&mut self, at: usize, position: Gtid) -> Check {
        self.copies += 1;
        let machine = &mut self.machines[at];
        let name = machine.hello.name.clone();
        let Some(process) = &mut machine.process else { return Ok(()) };
        let wholeness = process.device.as_ref().map(|device| device.replica.status().wholeness);
        machine.saved = position.seqno;
        machine.attempted = match wholeness {
            Some(Wholeness::Until(seqno)) => seqno,
            _ => position.seqno,
        };
        process.node.state_received(position);
        let image = machine.disk.image();
        if wholeness == Some(Wholeness::Whole) {
            machine.is_whole = true;
            self.reference.check_copy(&name, position.seqno, &image)?;
        } else {
            hold!(
                matches!(wholeness, Some(Wholeness::Until(_))),
                "a copy is whole, or will be",
                "{name}: {wholeness:?}"
            );
            self.reference.check_begun(&name, position.seqno, &image)?;
        }
        self.wake(at, 0);
        Ok(())
    }
}
