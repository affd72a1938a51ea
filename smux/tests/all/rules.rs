//! Frames sent in reaction to peer and application; the clock is paused.

use std::io::ErrorKind;
use std::time::Duration;

use crate::common::frames::{FIN, Frame, NOP, PSH, Peer, SYN, UPD};
use crate::common::{
    VERSIONS, accepted, commands, idle, number, quiet, raw_client, raw_server, streams,
};
use kcpx_smux::{Config, Error, ProtocolError, Session, Stream, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn shutdown_sends_fin_behind_all_data_and_reading_goes_on() {
    for version in VERSIONS {
        let (_session, mut peer, mut stream) = accepted(version, quiet()).await;
        stream.write_all(&vec![7; 50_000]).await.unwrap();
        stream.shutdown().await.unwrap();
        let expected = [(PSH, 3, 32_768), (PSH, 3, 17_232), (FIN, 3, 0)];
        assert_eq!(commands(&peer.frames().await), expected);
        assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        // A second shutdown has nothing to do.
        stream.shutdown().await.unwrap();
        peer.send(PSH, 3, b"late").await;
        peer.send(FIN, 3, b"").await;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"late");
    }
}

#[tokio::test(start_paused = true)]
async fn unread_data_survives_both_fins_and_the_end_of_the_session() {
    for version in VERSIONS {
        let (session, mut peer, mut stream) = accepted(version, quiet()).await;
        peer.send(PSH, 3, &vec![1; 10_000]).await;
        peer.send(FIN, 3, b"").await;
        stream.shutdown().await.unwrap();
        assert_eq!(session.num_streams(), 0);
        assert_eq!(session.stats().unread, 10_000);
        drop(peer);
        assert!(matches!(session.closed().await, Error::Closed));
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, [1; 10_000]);
        assert_eq!(session.stats().unread, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_sends_what_was_written_and_fin_in_the_background() {
    for version in VERSIONS {
        let (session, mut peer, mut stream) = accepted(version, quiet()).await;
        stream.write_all(b"last words").await.unwrap();
        drop(stream);
        let frames = peer.frames_without_updates().await;
        // The reset after FIN: data that the peer still sends is not read.
        assert_eq!(commands(&frames), [(PSH, 3, 10), (FIN, 3, 0), (NOP, 3, 0)]);
        assert_eq!(session.num_streams(), 0);
        peer.send(PSH, 3, b"this stays unread").await;
        idle().await;
        assert_eq!((session.stats().unread, session.stats().payload_dropped), (0, 17));
    }
}

#[tokio::test(start_paused = true)]
async fn aborted_stream_discards_what_was_written_and_is_reset_before_fin() {
    let (_session, mut peer, mut stream) = accepted(Version::V2, quiet()).await;
    // The window is closed: written bytes stay queued.
    peer.send_update(3, 0, 0).await;
    idle().await;
    stream.write_all(&[0; 1_000]).await.unwrap();
    stream.abort();
    let frames = peer.frames_without_updates().await;
    assert_eq!(commands(&frames), [(NOP, 3, 0), (FIN, 3, 0)]);
}

#[tokio::test(start_paused = true)]
async fn aborted_write_half_is_reset_before_fin_and_the_read_half_goes_on() {
    for version in VERSIONS {
        let config = quiet().fin_delay(Duration::from_secs(1));
        let (session, mut peer, stream) = accepted(version, config).await;
        let (mut read, write) = stream.into_split();
        peer.send(PSH, 3, b"request").await;
        peer.send(FIN, 3, b"").await;
        idle().await;
        write.abort();
        // A reset is not delayed like FIN.
        assert_eq!(commands(&peer.frames().await), [(NOP, 3, 0), (FIN, 3, 0)]);
        assert_eq!(&read.read_chunk().await.unwrap()[..], b"request");
        assert!(read.read_chunk().await.unwrap().is_empty());
        drop(read);
        peer.frames().await;
        assert_eq!(session.num_streams(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn fin_of_the_peer_behind_a_reset_of_ours_fails_the_read_half() {
    for version in VERSIONS {
        // The peer has half an answer queued, which it discards at the reset.
        let (client, server) = crate::common::pair(version);
        let (ours, mut theirs) = streams(&client, &server).await;
        let (mut read, write) = ours.into_split();
        theirs.write_all(b"part").await.unwrap();
        idle().await;
        write.abort();
        idle().await;
        assert!(theirs.write_all(b"rest").await.is_err());
        assert_eq!(&read.read_chunk().await.unwrap()[..], b"part");
        let error = read.read_chunk().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        drop((read, theirs));
        idle().await;
        assert_eq!((client.num_streams(), server.num_streams()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn fin_of_the_peer_before_a_reset_of_ours_is_an_orderly_end() {
    for version in VERSIONS {
        let (_session, mut peer, stream) = accepted(version, quiet()).await;
        let (mut read, write) = stream.into_split();
        peer.send(PSH, 3, b"all").await;
        peer.send(FIN, 3, b"").await;
        idle().await;
        write.abort();
        peer.frames().await;
        assert_eq!(&read.read_chunk().await.unwrap()[..], b"all");
        assert!(read.read_chunk().await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_whose_peer_pauses_for_the_timeout_is_reset_for_that_peer() {
    let (client, server) = crate::common::pair(Version::V2);
    let (mut writing, mut reading) = streams(&client, &server).await;
    writing.write_all(&vec![7; 280_000]).await.unwrap();
    drop(writing);
    // The rest waits for window.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let mut received = Vec::new();
    let error = reading.read_to_end(&mut received).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(received.len(), 262_144);
}

#[tokio::test(start_paused = true)]
async fn write_half_aborted_after_fin_sends_nothing_more() {
    for version in VERSIONS {
        let (_session, mut peer, stream) = accepted(version, quiet()).await;
        let (read, mut write) = stream.into_split();
        write.shutdown().await.unwrap();
        assert_eq!(commands(&peer.frames().await), [(FIN, 3, 0)]);
        write.abort();
        assert_eq!(commands(&peer.frames().await), []);
        // But the peer learns that the stream is not read.
        drop(read);
        let frames = peer.frames_without_updates().await;
        assert_eq!(commands(&frames), [(NOP, 3, 0)]);
    }
}

#[tokio::test(start_paused = true)]
async fn reset_ends_that_stream_alone_and_what_has_arrived_stays_readable() {
    for version in VERSIONS {
        let (session, mut peer, mut stream) = accepted(version, quiet()).await;
        peer.send(SYN, 5, b"").await;
        let mut other = session.accept_stream().await.unwrap();
        peer.send(PSH, 3, b"part").await;
        peer.send(NOP, 3, b"").await;
        peer.send(FIN, 3, b"").await;
        idle().await;
        let mut part = [0; 4];
        stream.read_exact(&mut part).await.unwrap();
        assert_eq!(&part, b"part");
        let is_reset = |error: std::io::Error| {
            let cause = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
            assert!(matches!(cause, Error::Reset), "{cause:?}");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        };
        is_reset(stream.read(&mut [0]).await.unwrap_err());
        is_reset(stream.write(b"x").await.unwrap_err());
        let stats = session.stats();
        assert_eq!((stats.streams_reset, stats.streams_failed), (1, 0));
        assert_eq!(session.num_streams(), 1);
        let frames = peer.frames_without_updates().await;
        assert_eq!(commands(&frames), [(FIN, 3, 0)]);
        peer.send(PSH, 5, b"unharmed").await;
        assert_eq!(&other.read_chunk().await.unwrap()[..], b"unharmed");
    }
}

#[tokio::test(start_paused = true)]
async fn reset_behind_fin_ends_writing_alone() {
    let (session, mut peer, mut stream) = accepted(Version::V2, quiet()).await;
    peer.send_update(3, 0, 0).await;
    idle().await;
    // Waits for window, as does FIN after it.
    stream.write_all(&[0; 1_000]).await.unwrap();
    peer.send(PSH, 3, b"all").await;
    peer.send(FIN, 3, b"").await;
    peer.send(NOP, 3, b"").await;
    idle().await;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"all");
    let error = stream.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let frames = peer.frames_without_updates().await;
    assert_eq!(commands(&frames), [(FIN, 3, 0)]);
    assert_eq!(session.num_streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn reset_of_no_stream_is_ignored_and_nop_without_an_id_is_keepalive() {
    for version in VERSIONS {
        let (session, mut peer, _stream) = accepted(version, quiet()).await;
        peer.send(NOP, 0, b"").await;
        peer.send(NOP, 5, b"").await;
        assert_eq!(commands(&peer.frames().await), []);
        let stats = session.stats();
        assert_eq!((stats.frames_ignored, stats.streams_reset), (1, 0));
        assert_eq!(session.num_streams(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn statistics_count_each_kind_of_frame_that_the_peer_gets() {
    for version in VERSIONS {
        let config = Config::new().keepalive(Some(Duration::from_secs(10)));
        let (session, mut peer, mut stream) = accepted(version, config).await;
        let opened = session.open_stream().await.unwrap();
        stream.write_all(&vec![7; 40_000]).await.unwrap();
        peer.send(PSH, 3, &[1; 10]).await;
        stream.read_exact(&mut [0; 10]).await.unwrap();
        stream.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_secs(15)).await;
        let frames = peer.frames().await;
        let sent = session.stats().frames_sent;
        let count = |cmd| frames.iter().filter(|frame| frame.cmd == cmd).count() as u64;
        let counts = [SYN, FIN, PSH, NOP, UPD].map(count);
        assert_eq!([sent.syn, sent.fin, sent.psh, sent.nop, sent.upd], counts);
        // Version 1 has no updates.
        assert_eq!(counts, [1, 1, 2, 1, u64::from(version == Version::V2)]);
        drop(opened);
    }
}

#[tokio::test(start_paused = true)]
async fn id_of_this_side_that_the_peer_uses_is_not_assigned_before_its_stream_ends() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(version, quiet());
        peer.send(SYN, 2, b"").await;
        let ended = session.accept_stream().await.unwrap();
        peer.send(SYN, 4, b"").await;
        let kept = session.accept_stream().await.unwrap();
        assert_eq!((ended.id(), kept.id()), (2, 4));
        peer.send(FIN, 2, b"").await;
        drop(ended);
        assert_eq!(commands(&peer.frames().await).last(), Some(&(FIN, 2, 0)));
        let ids =
            [session.open_stream().await.unwrap().id(), session.open_stream().await.unwrap().id()];
        assert_eq!(ids, [2, 6]);
        drop(kept);
    }
}

#[tokio::test(start_paused = true)]
async fn writer_whose_peer_drops_the_stream_is_reset() {
    for version in VERSIONS {
        let (client, server) = crate::common::pair(version);
        let (reading, mut writing) = streams(&client, &server).await;
        let writer = tokio::spawn(async move {
            loop {
                if let Err(error) = writing.write_all(&[0; 10_000]).await {
                    return error;
                }
            }
        });
        idle().await;
        drop(reading);
        let error = writer.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        idle().await;
        assert_eq!((client.num_streams(), server.num_streams()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn window_update_behind_fin_shows_that_the_peer_reads_on() {
    let (_session, mut peer, stream) = accepted(Version::V2, quiet()).await;
    let (_read, mut write) = stream.into_split();
    write.write_all(&[0; 1_000]).await.unwrap();
    idle().await;
    peer.send_update(3, 10, 100_000).await;
    peer.send(FIN, 3, b"").await;
    idle().await;
    assert_eq!(write.peer_reads_on(), Some(false));
    peer.send_update(3, 20, 100_000).await;
    idle().await;
    assert_eq!(write.peer_reads_on(), Some(true));
    let (_session, _peer, stream) = accepted(Version::V1, quiet()).await;
    assert_eq!(stream.into_split().1.peer_reads_on(), None);
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_credits_discarded_bytes_up_to_one_more_window() {
    let config = quiet().max_stream_buffer(100_000);
    let (session, mut peer, mut stream) = accepted(Version::V2, config).await;
    peer.send(PSH, 3, &vec![0; 60_000]).await;
    stream.read_exact(&mut [0; 1_000]).await.unwrap();
    assert_eq!(
        peer.frames().await,
        [Frame::new(2, UPD, 3, &[1_000_u32, 100_000].map(u32::to_le_bytes).concat())]
    );
    drop(stream);
    // Unread bytes are credited at once.
    let updates = |frames: &[Frame]| -> Vec<_> {
        frames.iter().filter(|frame| frame.cmd == UPD).map(Frame::update).collect()
    };
    assert_eq!(updates(&peer.frames().await), [(60_000, 100_000)]);
    assert_eq!(session.stats().unread, 0);
    let mut credited = Vec::new();
    for _ in 0..20 {
        peer.send(PSH, 3, &vec![0; 25_000]).await;
        credited.extend(updates(&peer.frames().await));
    }
    assert_eq!(credited, [(110_000, 100_000), (160_000, 100_000)]);
    // Forgotten at the peer's FIN.
    peer.send(FIN, 3, b"").await;
    peer.send(FIN, 3, b"").await;
    idle().await;
    assert_eq!(session.stats().frames_ignored, 1);
}

#[tokio::test(start_paused = true)]
async fn dropped_read_half_discards_what_arrives_and_the_write_half_goes_on() {
    let config = quiet().max_stream_buffer(10_000);
    let (session, mut peer, stream) = accepted(Version::V2, config).await;
    let (read, mut write) = stream.into_split();
    drop(read);
    let updates = peer.frames().await;
    assert_eq!(updates.iter().map(Frame::update).collect::<Vec<_>>(), [(0, 10_000)]);
    // What arrives is credited up to one window.
    let mut credited = Vec::new();
    for _ in 0..20 {
        peer.send(PSH, 3, &[0; 1_000]).await;
        credited.extend(peer.frames().await.iter().map(Frame::update));
    }
    assert_eq!(credited, [(5_000, 10_000), (10_000, 10_000)]);
    write.write_all(b"still here").await.unwrap();
    write.shutdown().await.unwrap();
    let frames = peer.frames().await;
    assert!(frames.iter().all(|frame| frame.cmd != UPD), "{frames:?}");
    assert!(frames.contains(&Frame::new(2, PSH, 3, b"still here")));
    assert_eq!(session.stats().unread, 0);
    assert_eq!(session.num_streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn stream_over_backlog_or_limit_is_answered_with_fin_and_not_registered() {
    for version in VERSIONS {
        let backlog = quiet().accept_backlog(2);
        let limit = quiet().max_streams(2);
        for config in [backlog, limit] {
            let (session, mut peer) = raw_server(version, config);
            for id in [3, 5, 7] {
                peer.send(SYN, id, b"").await;
                peer.send(PSH, id, b"data").await;
            }
            assert_eq!(commands(&peer.frames().await), [(FIN, 7, 0)]);
            let mut streams = Vec::new();
            for _ in 0..2 {
                streams.push(session.accept_stream().await.unwrap());
            }
            let stats = session.stats();
            assert_eq!((stats.streams_accepted, stats.streams_refused), (2, 1));
            assert_eq!((stats.frames_sent.fin, stats.bytes_sent), (1, 8));
            assert_eq!((session.num_streams(), stats.payload_dropped), (2, 4));
            // There is capacity again.
            streams.clear();
            peer.send(FIN, 3, b"").await;
            peer.send(FIN, 5, b"").await;
            idle().await;
            peer.send(SYN, 9, b"").await;
            assert_eq!(session.accept_stream().await.unwrap().id(), 9);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn peer_beyond_the_window_ends_that_stream_alone() {
    let (session, mut peer, mut stream) = accepted(Version::V2, quiet()).await;
    peer.send(SYN, 5, b"").await;
    let mut other = session.accept_stream().await.unwrap();
    for _ in 0..5 {
        peer.send(PSH, 3, &vec![0; 65_535]).await;
    }
    idle().await;
    assert_eq!((session.stats().unread, session.stats().streams_failed), (5 * 65_535, 0));
    peer.send(PSH, 3, &[0; 5]).await;
    let frames = peer.frames().await;
    assert_eq!(commands(&frames), [(FIN, 3, 0)]);
    let error = stream.read(&mut [0; 10]).await.unwrap_err();
    let cause = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
    let expected = ProtocolError::Window { unread: 327_680, allowed: 327_679 };
    assert!(matches!(cause, Error::Protocol(found) if *found == expected), "{cause:?}");
    assert_eq!(session.stats().unread, 0);
    peer.send(PSH, 5, b"unharmed").await;
    assert_eq!(&other.read_chunk().await.unwrap()[..], b"unharmed");
}

#[tokio::test(start_paused = true)]
async fn version_1_unread_stream_stops_the_session_until_it_is_read() {
    let (session, mut peer, mut stream) = accepted(Version::V1, quiet()).await;
    peer.send(SYN, 5, b"").await;
    let mut other = session.accept_stream().await.unwrap();
    for _ in 0..64 {
        peer.send(PSH, 3, &vec![0; 65_535]).await;
    }
    peer.send(PSH, 3, &[0; 64]).await;
    idle().await;
    assert_eq!((session.stats().unread, session.stats().stalls), (4 << 20, 1));
    peer.send(PSH, 5, b"behind").await;
    let read = tokio::time::timeout(Duration::from_secs(60), other.read_chunk()).await;
    assert!(read.is_err(), "the carrier is not read");
    stream.read_exact(&mut [0; 1]).await.unwrap();
    assert_eq!(&other.read_chunk().await.unwrap()[..], b"behind");
}

#[tokio::test(start_paused = true)]
async fn version_2_unread_stream_does_not_stop_others() {
    let (client, server) = crate::common::pair(Version::V2);
    let (mut stuck, _unread) = streams(&client, &server).await;
    let (mut sender, mut receiver) = streams(&client, &server).await;
    let blocked = tokio::spawn(async move { stuck.write_all(&vec![0; 1 << 20]).await });
    let sent = tokio::spawn(async move {
        sender.write_all(&vec![0; 20 << 20]).await.unwrap();
        sender.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).await.unwrap();
    sent.await.unwrap();
    assert_eq!(received.len(), 20 << 20);
    assert!(!blocked.is_finished());
    assert_eq!(server.stats().unread, 262_144);
}

#[tokio::test(start_paused = true)]
async fn many_streams_are_granted_shares_of_the_receive_buffer() {
    let config = quiet().max_stream_buffer(1 << 20);
    let (session, mut peer) = raw_server(Version::V2, config);
    for i in 0..100 {
        peer.send(SYN, 3 + 2 * i, b"").await;
    }
    let frames = peer.frames().await;
    let shares: Vec<_> = frames.iter().map(|frame| (frame.id, frame.update())).collect();
    // While their initial windows fit, streams are granted nothing before they are read.
    assert_eq!(shares.first(), Some(&(3 + 2 * 16, (0, 65_536))));
    assert_eq!(shares.len(), 84);
    // Alone, a stream gets everything.
    for _ in 1..100 {
        drop(session.accept_stream().await.unwrap());
    }
    for i in 0..99 {
        peer.send(FIN, 3 + 2 * i, b"").await;
    }
    peer.send(PSH, 201, b"x").await;
    peer.frames().await;
    let mut last = session.accept_stream().await.unwrap();
    last.read_exact(&mut [0]).await.unwrap();
    assert_eq!(peer.frames().await[0].update(), (1, 1 << 20));
}

#[tokio::test(start_paused = true)]
async fn keepalive_sends_nop_after_an_interval_without_frames() {
    for version in VERSIONS {
        let config = Config::new().keepalive(Some(Duration::from_secs(2)));
        let (_session, mut peer, mut stream) = accepted(version, config).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_900)).await;
        assert_eq!(commands(&peer.frames().await), [(PSH, 3, 1)]);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(commands(&peer.frames().await), [(NOP, 0, 0)]);
        tokio::time::sleep(Duration::from_millis(6_100)).await;
        assert_eq!(commands(&peer.frames().await), [(NOP, 0, 0); 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn session_ends_a_timeout_after_the_last_header() {
    for version in VERSIONS {
        let (session, mut peer, mut stream) = accepted(version, Config::new()).await;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(25)).await;
            peer.send(NOP, 0, b"").await;
        }
        idle().await;
        let last = Instant::now();
        assert!(matches!(session.closed().await, Error::Timeout));
        let after = last.elapsed();
        assert!((29_990..=30_010).contains(&after.as_millis()), "{after:?}");
        assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(peer.read_all().await.1, "the carrier is shut down");
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_does_not_run_while_the_carrier_is_not_read() {
    let config = Config::new().max_receive_buffer(1_000).max_stream_buffer(1_000);
    let (session, mut peer, mut stream) = accepted(Version::V1, config).await;
    peer.send(PSH, 3, &[0; 1_000]).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!session.is_closed());
    stream.read_exact(&mut [0; 1_000]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(!session.is_closed());
    assert!(matches!(session.closed().await, Error::Timeout));
}

#[tokio::test(start_paused = true)]
async fn fin_delay_holds_fin_back_only_behind_the_peers_fin() {
    for version in VERSIONS {
        let config = quiet().fin_delay(Duration::from_secs(1));
        let (session, mut peer, mut stream) = accepted(version, config.clone()).await;
        peer.send(FIN, 3, b"").await;
        stream.write_all(b"answer").await.unwrap();
        idle().await;
        let started = Instant::now();
        let shutdown = tokio::spawn(async move { stream.shutdown().await.map(|()| stream) });
        tokio::time::sleep(Duration::from_millis(990)).await;
        assert_eq!(commands(&peer.frames().await), [(PSH, 3, 6)]);
        drop(shutdown.await.unwrap().unwrap());
        assert_eq!(started.elapsed().as_millis() / 10, 100);
        assert_eq!(commands(&peer.frames().await), [(FIN, 3, 0)]);
        // Not without the peer's FIN, and not when the session is closed.
        peer.send(SYN, 5, b"").await;
        session.accept_stream().await.unwrap().shutdown().await.unwrap();
        let fins = peer.frames().await.into_iter().filter(|frame| frame.cmd == FIN);
        assert_eq!(commands(&fins.collect::<Vec<_>>()), [(FIN, 5, 0)]);
        peer.send(SYN, 7, b"").await;
        peer.send(FIN, 7, b"").await;
        drop(session.accept_stream().await.unwrap());
        assert_eq!(commands(&peer.frames().await), []);
        session.close().await.unwrap();
        assert_eq!(commands(&peer.frames().await), [(FIN, 7, 0)]);
    }
}

#[tokio::test(start_paused = true)]
async fn close_sends_what_is_queued_and_shuts_the_carrier_down() {
    for version in VERSIONS {
        let (session, mut peer) = raw_client(version, quiet());
        let mut stream = session.open_stream().await.unwrap();
        stream.write_all(&vec![1; 60_000]).await.unwrap();
        session.close().await.unwrap();
        let (bytes, ended) = peer.read_all().await;
        assert!(ended);
        let expected = [(SYN, 3, 0), (PSH, 3, 32_768), (PSH, 3, 27_232)];
        assert_eq!(commands(&crate::common::frames::parse(&bytes)), expected);
        assert!(session.is_closed());
        assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(matches!(session.open_stream().await, Err(Error::Closed)));
    }
}

#[tokio::test(start_paused = true)]
async fn close_towards_a_closed_window_ends_after_the_timeout() {
    let (session, mut peer) = raw_client(Version::V2, quiet());
    let mut stream = session.open_stream().await.unwrap();
    peer.send_update(3, 0, 0).await;
    idle().await;
    stream.write_all(b"stays").await.unwrap();
    let started = Instant::now();
    assert!(matches!(session.close().await, Err(Error::Timeout)));
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!(commands(&peer.frames().await), [(SYN, 3, 0)]);
}

#[tokio::test(start_paused = true)]
async fn close_towards_a_closed_window_sends_nop_until_the_timeout() {
    let (session, mut peer) = raw_client(Version::V2, Config::new());
    let mut stream = session.open_stream().await.unwrap();
    peer.send_update(3, 0, 0).await;
    idle().await;
    stream.write_all(b"stays").await.unwrap();
    assert_eq!(commands(&peer.frames().await), [(SYN, 3, 0)]);
    let close = tokio::spawn(async move { session.close().await });
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(commands(&peer.frames().await), [(NOP, 0, 0); 2]);
    assert!(matches!(close.await.unwrap(), Err(Error::Timeout)));
}

/// Handles dropped in every order: the carrier ends after the written bytes and FIN.
#[tokio::test(start_paused = true)]
async fn session_closes_when_the_last_handle_is_dropped_in_any_order() {
    for version in VERSIONS {
        for order in 0..24 {
            let (session, mut peer) = raw_client(version, quiet());
            let mut stream = session.open_stream().await.unwrap();
            stream.write_all(b"data").await.unwrap();
            let clone = stream.session();
            let (read, write) = stream.into_split();
            let mut handles: Vec<Box<dyn std::any::Any>> =
                vec![Box::new(session), Box::new(clone), Box::new(read), Box::new(write)];
            for n in (1..=4).rev() {
                assert!(!peer.read_all().await.1 || n == 4);
                drop(handles.remove(order / [1, 1, 2, 6][n - 1] % n));
            }
            let (_, ended) = peer.read_all().await;
            assert!(ended, "order {order}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ids_end_at_the_last_number() {
    for version in VERSIONS {
        let config = quiet().first_id(u32::MAX - 4);
        let (session, mut peer) = raw_client(version, config);
        for id in [u32::MAX - 4, u32::MAX - 2, u32::MAX] {
            assert_eq!(session.open_stream().await.unwrap().id(), id);
        }
        assert!(matches!(session.open_stream().await, Err(Error::IdsExhausted)));
        assert!(!session.is_closed());
        peer.send(SYN, 2, b"").await;
        assert_eq!(session.accept_stream().await.unwrap().id(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn ids_that_a_peer_has_taken_of_ours_are_not_given_out() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(version, quiet());
        for id in [2, 6] {
            peer.send(SYN, id, b"").await;
        }
        let theirs =
            [session.accept_stream().await.unwrap(), session.accept_stream().await.unwrap()];
        let ours = [session.open_stream().await.unwrap(), session.open_stream().await.unwrap()];
        assert_eq!(ours.each_ref().map(Stream::id), [4, 8]);
        // And this side's SYN is ignored.
        peer.send(SYN, 4, b"").await;
        idle().await;
        assert_eq!(session.stats().frames_ignored, 1);
        drop(theirs);
    }
}

#[tokio::test(start_paused = true)]
async fn id_of_ours_that_was_refused_to_a_peer_is_given_out_once_the_refusal_is_sent() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(version, quiet().accept_backlog(1));
        for id in [3, 2, 5] {
            peer.send(SYN, id, b"").await;
        }
        assert_eq!(commands(&peer.frames().await), [(FIN, 2, 0), (FIN, 5, 0)]);
        let ours = [session.open_stream().await.unwrap(), session.open_stream().await.unwrap()];
        assert_eq!(ours.each_ref().map(Stream::id), [2, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn id_of_ours_is_not_given_out_while_its_refusal_waits_for_the_carrier() {
    for version in VERSIONS {
        let (ours, io) = tokio::io::duplex(64);
        let config = quiet().version(version).accept_backlog(1);
        let session = Session::server(ours, config).unwrap();
        let mut peer = Peer { io, version: number(version) };
        peer.send(SYN, 3, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        // The carrier is full: the peer reads nothing.
        stream.write_all(&[0; 1_000]).await.unwrap();
        idle().await;
        for id in [5, 2] {
            peer.send(SYN, id, b"").await;
        }
        idle().await;
        let ours = session.open_stream().await.unwrap();
        assert_eq!(ours.id(), 4);
        let answers = peer.frames().await;
        assert_eq!(commands(&answers), [(PSH, 3, 1_000), (SYN, 4, 0), (FIN, 2, 0)]);
    }
}

/// A peer closes a stream that has this side's id, and reuses the id in the same write.
#[tokio::test(start_paused = true)]
async fn id_of_ours_that_a_peer_uses_again_at_once_is_not_given_out() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(version, quiet());
        peer.send(SYN, 2, b"").await;
        session.accept_stream().await.unwrap().shutdown().await.unwrap();
        let frames =
            [Frame::new(number(version), FIN, 2, b""), Frame::new(number(version), SYN, 2, b"")];
        peer.io.write_all(&frames.map(|frame| frame.encode()).concat()).await.unwrap();
        let again = session.accept_stream().await.unwrap();
        assert_eq!(again.id(), 2);
        // Turns of the driver in between.
        idle().await;
        peer.send(NOP, 0, b"").await;
        idle().await;
        assert_eq!(session.open_stream().await.unwrap().id(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn stream_lives_on_when_the_last_handle_of_its_ids_former_stream_is_dropped() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(version, quiet());
        peer.send(SYN, 3, b"").await;
        let mut former = session.accept_stream().await.unwrap();
        peer.send(FIN, 3, b"").await;
        former.shutdown().await.unwrap();
        // Over: the peer reuses the id.
        peer.send(SYN, 3, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        drop(former);
        peer.frames().await;
        assert_eq!(session.num_streams(), 1);
        peer.send(PSH, 3, b"here").await;
        let mut received = [0; 4];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"here");
        drop(peer);
        assert!(matches!(session.closed().await, Error::Closed));
        assert!(stream.write_all(b"x").await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn server_of_any_version_sends_nothing_before_the_first_frame() {
    for version in VERSIONS {
        let (session, mut peer) = raw_server(Version::Any, Config::new());
        let mut stream = session.open_stream().await.unwrap();
        stream.write_all(b"first").await.unwrap();
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(peer.read_all().await.0, b"");
        peer.version = number(version);
        peer.send(NOP, 0, b"").await;
        let frames = peer.frames().await;
        assert_eq!(commands(&frames), [(SYN, 2, 0), (PSH, 2, 5)]);
        assert!(frames.iter().all(|frame| frame.version == peer.version));
        assert_eq!(session.version(), Some(peer.version));
    }
}

#[tokio::test(start_paused = true)]
async fn session_without_its_driver_is_closed() {
    let (io, _peer) = tokio::io::duplex(1_000);
    let (session, driver) = Session::client_with_driver(io, quiet()).unwrap();
    let mut stream = session.open_stream().await.unwrap();
    let waiting = session.clone();
    let accept = tokio::spawn(async move { waiting.accept_stream().await.map(drop) });
    idle().await;
    drop(driver);
    assert!(matches!(accept.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(session.closed().await, Error::Closed));
    assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
}
