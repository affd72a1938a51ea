// A server and a client of xtaci/smux over TCP, against which smux/tests/all/live.rs runs kcpx-smux.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/xtaci/smux"
)

const usage = `usage: smux-peer server|client [OPTIONS]

  server  listens on a free port of 127.0.0.1, prints "listening HOST:PORT", and returns every byte of
          every stream
  client  opens --streams streams to --addr at once; sends --bytes bytes on each, SplitMix64 seeded with
          the number of the stream, closes its direction, and compares what comes back up to the end;
          prints a line that begins with "ok" if all is equal

options:
`

// limit ends a program that its test has left behind.
const limit = 15 * time.Minute

func main() {
	time.AfterFunc(limit, func() { exit(errors.New("not done after 15 minutes")) })
	f := flag.NewFlagSet("smux-peer", flag.ExitOnError)
	f.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		f.PrintDefaults()
	}
	config := smux.DefaultConfig()
	f.IntVar(&config.Version, "version", 1, "version of the protocol, 1 or 2")
	addr := f.String("addr", "", "`HOST:PORT` of the server")
	streams := f.Int("streams", 1, "streams of the client")
	size := f.Int("bytes", 0, "bytes of each stream")
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
		f.Parse(os.Args[2:])
	}
	switch command {
	case "server":
		exit(serve(config))
	case "client":
		exit(echo(config, *addr, *streams, *size))
	default:
		f.Usage()
		os.Exit(2)
	}
}

// exit ends the process, with status 1 after an error.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(config *smux.Config) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening", listener.Addr())
	for {
		carrier, err := listener.Accept()
		if err != nil {
			return err
		}
		session, err := smux.Server(carrier, config)
		if err != nil {
			return err
		}
		go accept(session)
	}
}

func accept(session *smux.Session) {
	defer session.Close()
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			defer stream.Close()
			io.Copy(stream, stream)
		}()
	}
}

func echo(config *smux.Config, addr string, streams, size int) error {
	carrier, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	session, err := smux.Client(carrier, config)
	if err != nil {
		return err
	}
	results := make(chan error, streams)
	for i := range streams {
		stream, err := session.OpenStream()
		if err != nil {
			return err
		}
		go func() { results <- compare(stream, uint64(i), size) }()
	}
	for range streams {
		if err := <-results; err != nil {
			return err
		}
	}
	fmt.Printf("ok %d streams of %d bytes\n", streams, size)
	return session.Close()
}

// compare sends size bytes and the end, and compares what comes back with them.
func compare(stream *smux.Stream, seed uint64, size int) error {
	defer stream.Close()
	written := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(stream, io.LimitReader(&splitMix{state: seed}, int64(size)), make([]byte, 50_000))
		written <- errors.Join(err, stream.CloseWrite())
	}()
	bytes, got, want, done := splitMix{state: seed}, make([]byte, 64<<10), make([]byte, 64<<10), 0
	for {
		n, err := stream.Read(got)
		bytes.Read(want[:n])
		if string(got[:n]) != string(want[:n]) {
			return fmt.Errorf("stream %d: other bytes from %d on", stream.ID(), done)
		}
		done += n
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("stream %d after %d bytes: %w", stream.ID(), done, err)
		}
	}
	if err := <-written; err != nil {
		return err
	}
	if done != size {
		return fmt.Errorf("stream %d: %d bytes instead of %d", stream.ID(), done, size)
	}
	return nil
}

// splitMix is an endless reader of SplitMix64, eight bytes of each number, the lowest first.
type splitMix struct {
	state uint64
	block [8]byte
	left  []byte
}

func (s *splitMix) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		if len(s.left) == 0 {
			s.state += 0x9e3779b97f4a7c15
			z := s.state
			z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
			z = (z ^ (z >> 27)) * 0x94d049bb133111eb
			binary.LittleEndian.PutUint64(s.block[:], z^(z>>31))
			s.left = s.block[:]
		}
		count := copy(p[n:], s.left)
		s.left = s.left[count:]
		n += count
	}
	return len(p), nil
}
