//! A double charge on one machine: a payment API, a client that retries, and a connection and a
//! card network that lose answers; first without Semel, then with it.
//!
//! Everything is real but the money: sockets, timeouts, the gateway, its store on disk. What goes
//! wrong is a script ([`orders`]), so it goes wrong in the same way in both acts, and each time.

mod act;
mod cards;
mod client;
mod gateway;
mod narrator;
mod orders;
mod shop;
pub(crate) mod steps;
mod verdict;
mod wire;

use std::{io, time::Duration};

pub(crate) use self::narrator::{Narrator, NarratorStyle};
use self::{
    act::Paid,
    client::{Payment, PaymentClient},
    gateway::DemoGateway,
    narrator::TextColor,
    orders::{BEN, Cents, ORDERS},
    shop::Shop,
    verdict::{DemoTranscript, Reuse},
    wire::LossyWire,
};
use semel_config::BearerToken;

/// Pause between two rows.
const ROW_PAUSE: Duration = Duration::from_millis(250);
/// Pause between two acts.
const ACT_PAUSE: Duration = Duration::from_millis(1500);
/// The amount that ben's key is reused for in the third act.
const OTHER_AMOUNT: Cents = Cents(99_99);

/// A finished demo whose servers still run.
pub(crate) struct DemoRun {
    /// What went wrong.
    pub(crate) flaws: Vec<String>,
    gateway: DemoGateway,
    shop: Shop,
}

/// Runs the demo. The gateway listens on this port, 0 for a free one.
pub(crate) async fn run_demo(narrator: &mut Narrator<'_>, port: u16) -> anyhow::Result<DemoRun> {
    // First, because the demo cannot run if the port is taken.
    let shop = Shop::open().await?;
    let gateway = DemoGateway::open(shop.address, port).await?;
    print_introduction(narrator)?;
    narrator.pause(ACT_PAUSE).await;

    narrator.title("1. Without Semel: client → payment API")?;
    let bare = Shop::open().await?;
    let first = play(narrator, &LossyWire::to(bare.address).await?, &bare).await?;
    narrator.pause(ACT_PAUSE).await;

    narrator.title("2. The same client, the same faults: client → Semel → payment API")?;
    let wire = LossyWire::to(gateway.address).await?;
    let second = play(narrator, &wire, &shop).await?;
    if second.iter().all(|paid| verdict::flaw(paid).is_none()) {
        explain(narrator, &second)?;
    }
    narrator.pause(ACT_PAUSE).await;

    narrator.title("3. One key for two amounts")?;
    let reuse = reuse(&wire, &shop).await;
    let (heard, charges) = (narrator::heard(&reuse.attempts), reuse.charges);
    narrator.line(format_args!(
        "  ben's key, now for {OTHER_AMOUNT}: {heard}. His charges so far: {charges}."
    ))?;

    let story = DemoTranscript { first, second, reuse };
    Ok(DemoRun { flaws: story.flaws(), gateway, shop })
}

fn print_introduction(narrator: &mut Narrator<'_>) -> io::Result<()> {
    narrator
        .line("Five customers pay once each. Their client waits a second for an answer, then")?;
    narrator.line("tries again with the same Idempotency-Key. Three of them are unlucky:")?;
    narrator.line("")?;
    narrator.line("  ben   is charged, and the answer is lost on its way to the client")?;
    narrator.line("  dan   is charged, so slowly that the client has given up by then")?;
    narrator.line("  eve   is charged, and the payment API never gets the answer")
}

/// All customers pay.
async fn play(narrator: &mut Narrator<'_>, wire: &LossyWire, shop: &Shop) -> io::Result<Vec<Paid>> {
    narrator.head()?;
    let mut act = Vec::new();
    for order in &ORDERS {
        let paid = act::pay(order, wire, shop).await;
        narrator.row(&paid)?;
        act.push(paid);
        narrator.pause(ROW_PAUSE).await;
    }
    let unlucky: Vec<_> = act.iter().filter(|paid| paid.charges.len() > 1).collect();
    let excess = unlucky.iter().map(|paid| paid.excess().0).sum();
    let sum = match unlucky.len() {
        0 => narrator.paint(TextColor::Green, "No one was charged twice."),
        many => {
            let sum = format!("{many} were charged more than once: {} too much.", Cents(excess));
            narrator.paint(TextColor::Red, &sum)
        }
    };
    narrator.line(format_args!("  {sum}"))?;
    Ok(act)
}

/// Explains what Semel did in each fault.
fn explain(narrator: &mut Narrator<'_>, act: &[Paid]) -> io::Result<()> {
    let ben = act.iter().find(|paid| paid.order.customer == BEN.customer).and_then(Paid::answer);
    let receipt = ben.map(|answer| String::from_utf8_lossy(&answer.body)).unwrap_or_default();
    narrator.line("")?;
    narrator
        .line("  ben   The lost answer was on record. The retry got it, byte for byte, with")?;
    narrator.line("        Idempotent-Replayed: true; the payment API never saw the retry:")?;
    narrator
        .line(format_args!("        {}", narrator.paint(TextColor::Dim, receipt.trim_end())))?;
    narrator.line("  dan   The first attempt ran on, and the retry got its answer: one charge.")?;
    narrator.line("  eve   The outcome is unknown, so Semel does not guess: it holds the key")?;
    narrator.line("        until an operator resolves it. Nothing is charged meanwhile.")
}

/// Uses ben's key again, for another amount.
async fn reuse(wire: &LossyWire, shop: &Shop) -> Reuse {
    let (key, customer) = (BEN.key(), BEN.customer);
    let payment = Payment { key: &key, customer, amount: OTHER_AMOUNT };
    let attempts = PaymentClient::at(wire.address).pay(&payment).await;
    shop.cards.settled().await;
    Reuse { attempts, charges: shop.cards.charges_of(customer).len() }
}

impl DemoRun {
    /// Prints what is still running, and what to try.
    pub(crate) fn print_next_steps(&self, narrator: &mut Narrator<'_>) -> io::Result<()> {
        let (gateway, shop) = (self.gateway.address, self.shop.address);
        narrator.title("Still running, until Ctrl-C")?;
        narrator.line(format_args!("  Semel        http://{gateway}"))?;
        if let Some(api) = self.gateway.api {
            let BearerToken(token) = &self.gateway.token;
            narrator.line(format_args!("  dashboard    http://{api}/  (token {token})"))?;
        }
        narrator.line(format_args!("  payment API  http://{shop}"))?;
        narrator.line(format_args!("  its ledger   http://{shop}/ledger"))?;
        narrator.line("")?;
        narrator
            .line("  Charge, do the same again (a replay), and change the amount (refused):")?;
        for cents in [1200, 1200, 9900] {
            let key = "-H 'Idempotency-Key: k1'";
            narrator
                .line(format_args!("  curl -i http://{gateway}/charges {key} -d cents={cents}"))?;
        }
        Ok(())
    }

    /// Stops the servers.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.gateway.close().await
    }
}
