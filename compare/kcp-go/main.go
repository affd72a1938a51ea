// kcp-go as a peer of kcpx-compare. The protocol is in `kcpx-compare --help` under "Another program". It has
// the workloads msg and bulk over the wires plain and fec-10-3, on Linux.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xtaci/kcp-go/v5"
	"golang.org/x/sys/unix"
)

const (
	mtu          = 1400
	window       = 1024
	socketBuffer = 4 << 20 // bytes, as kcpx asks for
	blockSize    = 64 << 10
	last         = uint64(1) << 63 // marks the number of the last message or block
	patience     = 30 * time.Second
	learning     = 5 * time.Second // messages due so early are counted apart
)

var (
	workload = flag.String("workload", "", "msg or bulk")
	wire     = flag.String("wire", "plain", "plain or fec-10-3")
	listen   = flag.String("listen", "", "`IP:PORT` of a server")
	connect  = flag.String("connect", "", "`IP:PORT` that a client connects to")
	seconds  = flag.Uint64("seconds", 0, "how long a client writes (default 60 for msg, 12 for bulk)")
	every    = flag.Duration("every", 10*time.Millisecond, "time between two messages")
	size     = flag.Int("size", 1024, "bytes of a message")
	streams  = flag.Int("streams", 1, "connections of bulk")

	// Data and parity shards; none turn FEC off.
	shards = map[string][2]int{"plain": {0, 0}, "fec-10-3": {10, 3}}
	little = binary.LittleEndian
)

func main() {
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, "kcp-go peer:", err)
		os.Exit(1)
	}
}

func play() error {
	if len(os.Args) < 2 || os.Args[1] != "server" && os.Args[1] != "client" {
		return errors.New("write server or client as the first argument")
	}
	for _, other := range []string{"peer", "server", "limit", "round-trips", "connections"} {
		flag.String(other, "", "without effect")
	}
	flag.CommandLine.Parse(os.Args[2:])
	defaults := map[string]uint64{"msg": 60, "bulk": 12}
	if defaults[*workload] == 0 {
		return fmt.Errorf("the workload is %q: there are msg and bulk", *workload)
	}
	if _, found := shards[*wire]; !found {
		return fmt.Errorf("the wire is %q: there are plain and fec-10-3", *wire)
	}
	if *every < 100*time.Microsecond || *size < 16 || *streams < 1 {
		return errors.New("--every is 100us at least, --size 16 and --streams 1")
	}
	if *seconds == 0 {
		*seconds = defaults[*workload]
	}
	if os.Args[1] == "server" {
		return serve()
	}
	return work()
}

func limit() time.Duration { return time.Duration(*seconds) * time.Second }

// apply makes the settings that all KCP peers have.
func apply(session *kcp.UDPSession) {
	session.SetStreamMode(true)
	session.SetMtu(mtu)
	session.SetWindowSize(window, window)
	session.SetNoDelay(1, 10, 2, 1)
	session.SetACKNoDelay(true)
	session.SetWriteDelay(false)
}

// report writes one line.
func report(what map[string]any) error { return json.NewEncoder(os.Stdout).Encode(what) }

func cpuSeconds() float64 {
	var usage unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func residentKiB() (kib uint64) {
	status, _ := os.ReadFile("/proc/self/status")
	_, line, _ := bytes.Cut(status, []byte("VmRSS:"))
	fmt.Sscan(string(line), &kib)
	return kib
}

// clock is in nanoseconds and the same in both processes, as time.Time is not.
func clock() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// server is what a server has seen so far.
type server struct {
	sync.Mutex
	bytes, connections uint64
	// For msg: messages read, the timestamp of the first, and nanoseconds that each took.
	received    uint64
	start       int64
	first, rest []int64
	// For bulk: the first byte and the end of the last block, and bytes read within the time.
	began, ended time.Time
	within       uint64
}

func serve() error {
	listener, err := kcp.ListenWithOptions(*listen, nil, shards[*wire][0], shards[*wire][1])
	if err != nil {
		return err
	}
	listener.SetReadBuffer(socketBuffer)
	listener.SetWriteBuffer(socketBuffer)
	s := &server{}
	go func() {
		for {
			session, err := listener.AcceptKCP()
			if err != nil {
				fmt.Fprintln(os.Stderr, "kcp-go peer: accept:", err)
				os.Exit(1)
			}
			apply(session)
			s.Lock()
			s.connections++
			s.Unlock()
			go s.attend(session)
		}
	}()
	err = report(map[string]any{"addr": listener.Addr().String()})
	for requests := bufio.NewScanner(os.Stdin); err == nil && requests.Scan(); {
		err = report(s.snapshot())
	}
	return err
}

// attend does not close the session: its answer may be on its way for long.
func (s *server) attend(session *kcp.UDPSession) {
	read := s.readBlocks
	if *workload == "msg" {
		read = s.readMessages
	}
	total, err := read(session)
	if err == nil {
		_, err = session.Write(little.AppendUint64(nil, total))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "server: a connection failed:", err)
	}
}

func (s *server) readMessages(session io.Reader) (total uint64, err error) {
	message := make([]byte, *size)
	s.Lock()
	s.received, s.first, s.rest = 0, nil, nil
	s.Unlock()
	for {
		if _, err := io.ReadFull(session, message); err != nil {
			return total, err
		}
		now := clock()
		number, due := little.Uint64(message), int64(little.Uint64(message[8:]))
		total += uint64(*size)
		s.Lock()
		s.bytes += uint64(*size)
		if s.received == 0 {
			s.start = due
		}
		if number&^last != s.received || due < s.start || due > now {
			err = fmt.Errorf("message %d is number %#x, due at %d ns and read at %d", s.received, number, due, now)
		} else if s.received++; due-s.start < learning.Nanoseconds() {
			s.first = append(s.first, now-due)
		} else {
			s.rest = append(s.rest, now-due)
		}
		s.Unlock()
		if err != nil || number&last != 0 {
			return total, err
		}
	}
}

func (s *server) readBlocks(session io.Reader) (total uint64, err error) {
	block := make([]byte, blockSize)
	for number := uint64(0); ; number++ {
		for filled := 0; filled < blockSize; {
			n, err := session.Read(block[filled:])
			if err != nil {
				return total, err
			}
			filled += n
			s.count(n)
		}
		total += blockSize
		head, tail := little.Uint64(block), little.Uint64(block[blockSize-8:])
		if head != tail || head&^last != number {
			return total, fmt.Errorf("block %d is stamped %#x and %#x", number, head, tail)
		}
		if head&last != 0 {
			s.Lock()
			s.ended = time.Now()
			s.Unlock()
			return total, nil
		}
	}
}

// count takes bytes of a block that were just read.
func (s *server) count(n int) {
	now := time.Now()
	s.Lock()
	defer s.Unlock()
	s.bytes += uint64(n)
	if s.began.IsZero() {
		s.began = now
	}
	if now.Sub(s.began) <= limit() {
		s.within += uint64(n)
	}
}

func (s *server) snapshot() map[string]any {
	s.Lock()
	defer s.Unlock()
	seen := map[string]any{"cpu_s": cpuSeconds(), "rss_kib": residentKiB(), "bytes": s.bytes,
		"connections": s.connections}
	if *workload == "msg" && s.connections > 0 {
		seen["messages"] = map[string]any{"received": s.received, "first_5s": latency(s.first),
			"rest": latency(s.rest)}
	}
	// Either everything has arrived, or the time must be over.
	elapsed := s.ended.Sub(s.began)
	if s.ended.IsZero() {
		elapsed = time.Since(s.began)
	}
	if !s.began.IsZero() && (!s.ended.IsZero() || elapsed >= limit()) {
		seen["within"] = map[string]any{"bytes": s.within, "seconds": min(elapsed, limit()).Seconds()}
	}
	return seen
}

// latency is nil, in JSON null, without messages.
func latency(nanos []int64) map[string]any {
	if len(nanos) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(nanos))
	micros := func(quantile float64) float64 {
		rank := max(int(math.Ceil(quantile*float64(len(sorted)))), 1)
		return float64(sorted[rank-1]) / 1e3
	}
	return map[string]any{"count": len(sorted), "min_us": micros(0), "p50_us": micros(0.5), "p95_us": micros(0.95),
		"p99_us": micros(0.99), "p999_us": micros(0.999), "max_us": micros(1)}
}

func work() error {
	var reported atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		if reported.Load() {
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, "client: the input has ended before there was a result")
		os.Exit(1)
	}()
	// On one CPU that read stops all others until the runtime notices that it blocks: better here than
	// in the middle of the first messages.
	runtime.Gosched()
	write := writeBlocks
	if *workload == "msg" {
		write, *streams = writeMessages, 1
	}
	sessions := make([]*kcp.UDPSession, *streams)
	for i := range sessions {
		session, err := kcp.DialWithOptions(*connect, nil, shards[*wire][0], shards[*wire][1])
		if err != nil {
			return err
		}
		session.SetReadBuffer(socketBuffer)
		session.SetWriteBuffer(socketBuffer)
		apply(session)
		sessions[i] = session
	}
	start, cpu := time.Now(), cpuSeconds()
	var sent, late atomic.Uint64
	ended := make(chan error)
	for _, session := range sessions {
		session.SetDeadline(start.Add(limit() + patience))
		go func() {
			total, err := write(session)
			sent.Add(total)
			if err == nil {
				err = readAnswer(session, total)
			}
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				late.Add(1)
				err = nil
			}
			ended <- err
		}()
	}
	for range sessions {
		if err := <-ended; err != nil {
			return err
		}
	}
	outcome := map[string]any{"bytes": sent.Load(), "wall_s": time.Since(start).Seconds(),
		"cpu_s": cpuSeconds() - cpu, "complete": late.Load() == 0}
	if snmp := kcp.DefaultSnmp.Copy(); snmp.OutSegs > 0 {
		outcome["retransmit_pct"] = float64(snmp.RetransSegs) * 100 / float64(snmp.OutSegs)
	}
	if err := report(outcome); err != nil {
		return err
	}
	reported.Store(true)
	select {} // The connections stay until the input ends.
}

func readAnswer(session io.Reader, total uint64) error {
	answer := make([]byte, 8)
	if _, err := io.ReadFull(session, answer); err != nil {
		return err
	}
	if arrived := little.Uint64(answer); arrived != total {
		return fmt.Errorf("%d bytes arrived of %d", arrived, total)
	}
	return nil
}

// writeMessages stamps each message with when it was due, however late it leaves.
func writeMessages(session io.Writer) (total uint64, err error) {
	// A timer of the kernel: Go waits for its own in whole milliseconds, which would be part of every
	// latency.
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	timer, expired := os.NewFile(uintptr(fd), "timer"), make([]byte, 8)
	message := bytes.Repeat([]byte{0x5a}, *size)
	count := max(uint64((limit()+*every-1) / *every), 1)
	start := clock()
	for number := range count {
		due := start + int64(number)*every.Nanoseconds()
		if clock() < due {
			alarm := unix.ItimerSpec{Value: unix.NsecToTimespec(due)}
			if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &alarm, nil); err != nil {
				return total, err
			}
			if _, err := timer.Read(expired); err != nil {
				return total, err
			}
		}
		if number == count-1 {
			number |= last
		}
		little.PutUint64(message, number)
		little.PutUint64(message[8:], uint64(due))
		if _, err := session.Write(message); err != nil {
			return total, err
		}
		total += uint64(*size)
	}
	return total, nil
}

// writeBlocks counts a block before it is written, as the other peers do.
func writeBlocks(session io.Writer) (total uint64, err error) {
	block := bytes.Repeat([]byte{0x5a}, blockSize)
	start := time.Now()
	for number := uint64(0); ; number++ {
		if time.Since(start) >= limit() {
			number |= last
		}
		little.PutUint64(block, number)
		little.PutUint64(block[blockSize-8:], number)
		total += blockSize
		if _, err := session.Write(block); err != nil || number&last != 0 {
			return total, err
		}
	}
}
