//! The client: one run of one workload, and both sides' share of the report.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kcpx::{Config, Endpoint, KcpStream, Limits};
use tokio::io::AsyncWriteExt;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::args::{ClientArgs, Plan, Workload};
use super::bind::bind_for;
use super::meter::Meter;
use super::report::{Client, Report, Server};
use super::usage::checked;
use super::wire::{self, Answer, Ask, Header, Offer, Role, Sample};
use super::{bulk, crowd, latency, system};

/// How long the server may take to answer the first request, and one later.
const HELLO: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(15);

/// Runs the workload of the command line and reports it, whole or interrupted.
pub(crate) async fn run(args: Box<ClientArgs>) -> Result<()> {
    let plan = checked(args.plan());
    let config = checked(args.link.config());
    let server = resolve(&args.connect).await?;
    eprintln!("connecting to {server}");
    let session = Session::open(plan.clone(), config, server).await.with_context(|| {
        format!(
            "no run with {server}: is `perf server` running there, and has it the same --crypt \
             and --key?"
        )
    })?;
    eprintln!("{} with {server}, {}", plan.workload.name(), args.link.crypt);

    let measured = measure(&session, &args).await;
    let closed = session.close().await;
    measured.and(closed)
}

async fn measure(session: &Session, args: &ClientArgs) -> Result<()> {
    // A task of its own, so that nothing else is polled when it is.
    let mut work = JoinSet::new();
    work.spawn(workload(session.clone()));
    let interrupted = tokio::select! {
        worked = work.join_next() => {
            worked.context("the workload is gone")???;
            false
        }
        interrupted = crate::signals::interrupted() => {
            interrupted?;
            true
        }
        never = session.meter.watch() => match never {},
    };
    session.meter.end();
    work.shutdown().await;
    let report = session.report(interrupted).await?;
    report.context("interrupted before the measurement began")?.write(args)
}

async fn workload(session: Session) -> Result<()> {
    let name = session.plan.workload.name();
    match session.plan.workload {
        Workload::Sink => bulk::sink(&session).await,
        Workload::Source => bulk::source(&session).await,
        Workload::Echo => bulk::echo(&session).await,
        Workload::Pingpong => latency::pingpong(&session).await,
        Workload::Messages => latency::messages(&session).await,
        Workload::Many => crowd::many(&session).await,
        Workload::Idle => crowd::idle(&session).await,
    }
    .context(name)
}

async fn resolve(addr: &str) -> Result<SocketAddr> {
    let mut found = lookup_host(addr).await.with_context(|| {
        format!("cannot find {addr:?}: write HOST:PORT with a known host, as in example.org:4010")
    })?;
    found.next().with_context(|| format!("{addr:?} has no address"))
}

/// A run, as its workload and its report see it.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) plan: Plan,
    pub(crate) meter: Arc<Meter>,
    endpoint: Endpoint,
    server: SocketAddr,
    id: u64,
    book: Arc<Mutex<Book>>,
}

/// The control stream, and what came over it.
struct Book {
    control: KcpStream,
    /// The server before there was anything of this run.
    before: Sample,
    /// Memory of this process then.
    rss_kib: Option<u64>,
    begin: Option<Sample>,
    end: Option<Sample>,
    failed: u32,
}

impl Session {
    async fn open(plan: Plan, mut config: Config, server: SocketAddr) -> Result<Self> {
        config = config.limits(Limits::new().max_connections(1 << 20));
        let endpoint = bind_for(server, config).await?;
        let mut id = [0; 8];
        getrandom::fill(&mut id)?;
        let id = u64::from_be_bytes(id);
        let offer = Offer {
            workload: plan.workload.name().to_owned(),
            bytes: plan.bytes,
            seconds: plan.time.map(|time| time.as_secs_f64()),
        };
        let mut control = endpoint.connect(server).await?;
        control.write_all(&Header { role: Role::Control, run: id }.encode()).await?;
        wire::send(&mut control, &offer).await?;
        let before = timeout(HELLO, answer(&mut control)).await;
        let before = before.context("no answer within 10 s")??;
        let rss_kib = system::rss_kib();
        let meter = Arc::new(Meter::new(plan.workload, endpoint.clone()));
        let book = Book { control, before, rss_kib, begin: None, end: None, failed: 0 };
        Ok(Self { plan, meter, endpoint, server, id, book: Arc::new(Mutex::new(book)) })
    }

    /// Opens a stream of the run. It is the caller's to send the header.
    pub(crate) async fn connect(&self) -> Result<KcpStream> {
        Ok(self.endpoint.connect(self.server).await?)
    }

    pub(crate) fn header(&self, role: Role) -> [u8; wire::HEADER] {
        Header { role, run: self.id }.encode()
    }

    /// Opens a stream and sends its header.
    pub(crate) async fn open_as(&self, role: Role) -> Result<KcpStream> {
        let mut stream = self.connect().await?;
        stream.write_all(&self.header(role)).await?;
        Ok(stream)
    }

    /// Starts the clock, on both sides.
    pub(crate) async fn begin(&self) -> Result<()> {
        let mut book = self.book.lock().await;
        book.begin = Some(book.ask(Ask::Sample).await?);
        self.meter.begin();
        Ok(())
    }

    /// Stops the clock, on both sides.
    pub(crate) async fn end(&self) -> Result<()> {
        self.meter.end();
        let mut book = self.book.lock().await;
        book.end = Some(book.ask(Ask::Sample).await?);
        Ok(())
    }

    /// Notes connections that did not succeed.
    pub(crate) async fn failed(&self, count: u32) {
        self.book.lock().await.failed = count;
    }

    /// Closes the books: everything so far, or nothing if the measurement has not begun.
    async fn report(&self, interrupted: bool) -> Result<Option<Report>> {
        let mut book = self.book.lock().await;
        let end = match book.end.take() {
            Some(end) => end,
            None => book.ask(Ask::Sample).await?,
        };
        let begin = book.begin.take().unwrap_or_else(|| book.before.clone());
        let totals = book.ask(Ask::Finish).await?;
        let Some(measured) = self.meter.measured() else { return Ok(None) };
        let whole = !interrupted && self.plan.workload == Workload::Source;
        if whole && totals.bytes_out != measured.bytes {
            bail!("the server sent {} bytes, {} arrived", totals.bytes_out, measured.bytes);
        }
        let (before, failed) = (book.before.clone(), book.failed);
        let server = Server { before, begin, end, totals };
        let client = Client { measured, rss_kib_before: book.rss_kib, failed, interrupted };
        Ok(Some(Report::new(&self.plan, client, &server)))
    }

    /// Ends what is left of the run, so that the server sees it at once.
    async fn close(&self) -> Result<()> {
        let ending = async {
            self.book.lock().await.control.shutdown().await?;
            self.endpoint.wait_idle().await;
            Ok(())
        };
        timeout(HELLO, ending).await.context("the server does not take the end of the run")?
    }
}

impl Book {
    async fn ask(&mut self, ask: Ask) -> Result<Sample> {
        let asked = async {
            wire::send(&mut self.control, &ask).await?;
            answer(&mut self.control).await
        };
        timeout(ANSWER, asked).await.context("the server does not answer any more")?
    }
}

async fn answer(control: &mut KcpStream) -> Result<Sample> {
    match wire::receive(control).await?.context("the server has ended the run")? {
        Answer::Sample(sample) => Ok(sample),
        Answer::Refused(reason) => bail!("refused: {reason}"),
    }
}
