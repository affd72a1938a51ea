// A server and clients of kcp-go, against which the tests of kcpx run. One source for both versions of
// kcp-go: go.mod names the newer, v5.6.72.mod the other.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

const usage = `usage: kcp-go-peer COMMAND --addr HOST:PORT [OPTIONS]

  server   listens, prints "listening HOST:PORT" as its first line, and returns every byte of every
           session and every out-of-band packet; ends when its standard input ends
  client   sends --bytes bytes, SplitMix64 from --seed, reads the same number and compares them
  clients  --count clients, each with a socket of its own; each sends one message of --bytes bytes and
           waits for all of them to return
  upload   sends --bytes bytes at once and waits for one byte

The last line that each prints is one JSON object: "ok", "error" where it failed, what was measured, and
the counters of kcp-go ("snmp"). The status is 1 unless all went well. All end after --seconds.

options:
`

// fail prints the report of a run that went wrong, and ends the process.
func fail(err error) {
	report(map[string]any{"ok": false, "error": err.Error()})
}

// report prints the last line and ends the process.
func report(result map[string]any) {
	result["snmp"] = kcp.DefaultSnmp.Copy()
	line, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
	if result["ok"] == true {
		os.Exit(0)
	}
	os.Exit(1)
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	run := map[string]func(*options) (map[string]any, error){
		"server":  serve,
		"client":  echo,
		"clients": crowd,
		"upload":  upload,
	}[os.Args[1]]
	o, err := parse(os.Args[1], os.Args[2:])
	if err == flag.ErrHelp {
		os.Exit(0)
	}
	if err == nil && run == nil {
		err = fmt.Errorf("unknown command %q: write server, client, clients or upload", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	if os.Args[1] != "clients" {
		// The crowd reports how many were answered when its time is up.
		time.AfterFunc(o.limit, func() { fail(fmt.Errorf("not done after %v", o.limit)) })
	}
	result, err := run(o)
	if err != nil {
		fail(err)
	}
	report(result)
}

func serve(o *options) (map[string]any, error) {
	listener, err := kcp.ListenWithOptions(o.addr, o.block, o.data, o.parity)
	if err != nil {
		return nil, err
	}
	listener.SetReadBuffer(socketBuffer)
	listener.SetWriteBuffer(socketBuffer)
	fmt.Println("listening", listener.Addr())
	go func() {
		for {
			session, err := listener.AcceptKCP()
			if err != nil {
				return
			}
			o.apply(session)
			session.SetOOBHandler(func(packet []byte) {
				// The packet is only lent.
				session.SendOOB(append([]byte(nil), packet...))
			})
			go func() {
				defer session.Close()
				if o.sink {
					io.Copy(io.Discard, session)
				} else {
					io.Copy(session, session)
				}
			}()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	return map[string]any{"ok": true}, nil
}

// echo compares what comes back, byte by byte.
func echo(o *options) (map[string]any, error) {
	session, err := o.dial()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	written := make(chan error, 1)
	go func() { written <- o.write(session) }()
	expected, buffer, got := newSplitMix(o.seed), make([]byte, 64<<10), 0
	want := make([]byte, len(buffer))
	for got < o.bytes {
		n, err := session.Read(buffer)
		if err != nil {
			return nil, fmt.Errorf("after %d bytes: %w", got, err)
		}
		expected.fill(want[:n])
		if string(want[:n]) != string(buffer[:n]) {
			return nil, fmt.Errorf("the bytes from %d to %d differ", got, got+n)
		}
		got += n
	}
	took := time.Since(start)
	if err := <-written; err != nil {
		return nil, err
	}
	leave(session)
	return map[string]any{"ok": true, "bytes": got, "ms": millis(took)}, nil
}

func upload(o *options) (map[string]any, error) {
	session, err := o.dial()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := o.write(session); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(session, make([]byte, 1)); err != nil {
		return nil, err
	}
	took := time.Since(start)
	leave(session)
	return map[string]any{"ok": true, "ms": millis(took)}, nil
}

// crowd reports how many clients were answered, and the slowest of them.
func crowd(o *options) (map[string]any, error) {
	var answered []time.Duration
	var wait sync.WaitGroup
	var lock sync.Mutex
	var first error
	end := time.Now().Add(o.limit)
	for i := range o.count {
		session, err := o.dialLossy(o.seed + uint64(i))
		if err != nil {
			return nil, err
		}
		session.SetDeadline(end)
		wait.Go(func() {
			start := time.Now()
			err := o.write(session)
			if err == nil {
				_, err = io.ReadFull(session, make([]byte, o.bytes))
			}
			took := time.Since(start)
			lock.Lock()
			defer lock.Unlock()
			if err == nil {
				answered = append(answered, took)
			} else if first == nil {
				first = err
			}
			// The session stays until the process ends, so that its ACKs leave.
		})
		time.Sleep(o.gap)
	}
	wait.Wait()
	result := map[string]any{"ok": len(answered) == o.count, "clients": o.count, "answered": len(answered)}
	if first != nil {
		result["error"] = first.Error()
	}
	var slowest time.Duration
	for _, took := range answered {
		slowest = max(slowest, took)
	}
	result["slowest_ms"] = millis(slowest)
	return result, nil
}

// write sends all bytes of a client.
func (o *options) write(session *kcp.UDPSession) error {
	bytes, buffer := newSplitMix(o.seed), make([]byte, min(o.bytes, 64<<10))
	for left := o.bytes; left > 0; {
		part := buffer[:min(left, len(buffer))]
		bytes.fill(part)
		if _, err := session.Write(part); err != nil {
			return err
		}
		left -= len(part)
	}
	return nil
}

// leave waits until the last ACKs are on their way: Close of 5.7.5 drops what the session has queued.
func leave(session *kcp.UDPSession) {
	time.Sleep(100 * time.Millisecond)
	session.Close()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
