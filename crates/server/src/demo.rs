//! The double-charge story on one machine: a payment API, a client that retries, a wire and a card
//! network that lose answers; first without Semel, then through it.
//!
//! Everything is real but the money: sockets, timeouts, the gateway, its store on disk. What goes
//! wrong is a script ([`orders`]), so it goes wrong in the same way in both acts, and each time.

mod act;
mod cards;
mod client;
mod front;
mod orders;
mod shop;
mod teller;
mod verdict;
mod wire;

use std::{io, time::Duration};

pub(crate) use self::teller::{Manner, Teller};
use self::{
    act::Paid,
    client::{Client, Payment},
    front::Front,
    orders::{BEN, Cents, ORDERS},
    shop::Shop,
    teller::Ink,
    verdict::{Reuse, Story},
    wire::Wire,
};

/// Between two rows, where there are pauses.
const BEAT: Duration = Duration::from_millis(250);
/// Between two acts.
const REST: Duration = Duration::from_millis(1500);
/// What ben's key is used for in the third act.
const OTHER: Cents = Cents(99_99);

/// The story, told.
pub(crate) struct Told {
    /// What did not hold of it, in sentences.
    pub(crate) flaws: Vec<String>,
    front: Front,
    shop: Shop,
}

/// Tells the story. The gateway of its second act listens on this port, 0 for a free one.
pub(crate) async fn tell(teller: &mut Teller<'_>, port: u16) -> anyhow::Result<Told> {
    // Before a word is said: if the port is taken there is no story.
    let shop = Shop::open().await?;
    let front = Front::open(shop.address, port).await?;
    introduce(teller)?;
    teller.pause(REST).await;

    teller.title("1. Without Semel: client → payment API")?;
    let bare = Shop::open().await?;
    let first = play(teller, &Wire::to(bare.address).await?, &bare).await?;
    teller.pause(REST).await;

    teller.title("2. The same client, the same faults: client → Semel → payment API")?;
    let wire = Wire::to(front.address).await?;
    let second = play(teller, &wire, &shop).await?;
    if second.iter().all(|paid| verdict::flaw(paid).is_none()) {
        explain(teller, &second)?;
    }
    teller.pause(REST).await;

    teller.title("3. One key for two amounts")?;
    let reuse = reuse(&wire, &shop).await;
    let (heard, charges) = (teller::heard(&reuse.tries), reuse.charges);
    teller.line(format_args!(
        "  ben's key, now for {OTHER}: {heard}. His charges so far: {charges}."
    ))?;

    let story = Story { first, second, reuse };
    Ok(Told { flaws: story.flaws(), front, shop })
}

fn introduce(teller: &mut Teller<'_>) -> io::Result<()> {
    teller.line("Five customers pay once each. Their client waits a second for an answer, then")?;
    teller.line("tries again with the same Idempotency-Key. Three of them are unlucky:")?;
    teller.line("")?;
    teller.line("  ben   is charged, and the answer is lost on its way to the client")?;
    teller.line("  dan   is charged, so slowly that the client has given up by then")?;
    teller.line("  eve   is charged, and the payment API never hears of it")
}

/// Everybody pays.
async fn play(teller: &mut Teller<'_>, wire: &Wire, shop: &Shop) -> io::Result<Vec<Paid>> {
    teller.head()?;
    let mut act = Vec::new();
    for order in &ORDERS {
        let paid = act::pay(order, wire, shop).await;
        teller.row(&paid)?;
        act.push(paid);
        teller.pause(BEAT).await;
    }
    let unlucky: Vec<_> = act.iter().filter(|paid| paid.charges.len() > 1).collect();
    let excess = unlucky.iter().map(|paid| paid.excess().0).sum();
    let sum = match unlucky.len() {
        0 => teller.ink(Ink::Green, "Nobody was charged twice."),
        many => {
            let sum = format!("{many} were charged more than once: {} too much.", Cents(excess));
            teller.ink(Ink::Red, &sum)
        }
    };
    teller.line(format_args!("  {sum}"))?;
    Ok(act)
}

/// Says what Semel did for the unlucky.
fn explain(teller: &mut Teller<'_>, act: &[Paid]) -> io::Result<()> {
    let ben = act.iter().find(|paid| paid.order.customer == BEN.customer).and_then(Paid::answer);
    let receipt = ben.map(|answer| String::from_utf8_lossy(&answer.body)).unwrap_or_default();
    teller.line("")?;
    teller.line("  ben   The lost answer was on record. The retry got it, byte for byte, with")?;
    teller.line("        Idempotent-Replayed: true; the payment API never saw the retry:")?;
    teller.line(format_args!("        {}", teller.ink(Ink::Dim, receipt.trim_end())))?;
    teller.line("  dan   The first attempt ran on, and the retry got its answer: one charge.")?;
    teller.line("  eve   Nobody can know what happened, so Semel does not guess: it holds the")?;
    teller.line("        key until somebody has looked. Nothing is charged meanwhile.")
}

/// Uses ben's key again, for another amount.
async fn reuse(wire: &Wire, shop: &Shop) -> Reuse {
    let (key, customer) = (BEN.key(), BEN.customer);
    let payment = Payment { key: &key, customer, amount: OTHER };
    let tries = Client::at(wire.address).pay(&payment).await;
    shop.cards.settled().await;
    Reuse { tries, charges: shop.cards.charges_of(customer).len() }
}

impl Told {
    /// Says what is left running, and what to try there.
    pub(crate) fn signpost(&self, teller: &mut Teller<'_>) -> io::Result<()> {
        let (front, shop) = (self.front.address, self.shop.address);
        teller.title("Still running, until Ctrl-C")?;
        teller.line(format_args!("  Semel        http://{front}"))?;
        if let Some(api) = self.front.api {
            teller.line(format_args!("  its records  http://{api}/v1/records"))?;
        }
        teller.line(format_args!("  payment API  http://{shop}"))?;
        teller.line(format_args!("  its ledger   http://{shop}/ledger"))?;
        teller.line("")?;
        teller.line("  Charge, do the same again (a replay), and change the amount (refused):")?;
        for cents in [1200, 1200, 9900] {
            let key = "-H 'Idempotency-Key: k1'";
            teller.line(format_args!("  curl -i http://{front}/charges {key} -d cents={cents}"))?;
        }
        Ok(())
    }

    /// Stops what is left running.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.front.close().await
    }
}
