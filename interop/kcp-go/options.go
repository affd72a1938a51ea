package main

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// socketBuffer is the size of a socket's buffers in bytes, so that a burst is not dropped there.
const socketBuffer = 4 << 20

// options of all commands.
type options struct {
	addr         string
	block        kcp.BlockCrypt
	data, parity int
	stream       bool
	mtu          int
	sndwnd       int
	rcvwnd       int
	nodelay      [4]int
	writeDelay   bool
	ackNoDelay   bool
	rateLimit    uint
	sink         bool
	bytes        int
	seed         uint64
	count        int
	gap          time.Duration
	loss         float64
	limit        time.Duration
}

func parse(command string, args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	f.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.addr, "addr", "127.0.0.1:0", "`HOST:PORT` to listen at or to connect to")
	cipher := f.String("cipher", "null", "`NAME` as kcptun writes it; null is no encryption, not even a nonce and a checksum")
	key := f.String("key", "", "key in hexadecimal, as long as the cipher takes")
	fec := f.String("fec", "0/0", "`DATA/PARITY` shards of a group; 0/0 is no FEC")
	mode := f.String("mode", "stream", "stream or message")
	f.IntVar(&o.mtu, "mtu", 1400, "largest UDP payload in bytes")
	f.IntVar(&o.sndwnd, "sndwnd", 1024, "send window in segments")
	f.IntVar(&o.rcvwnd, "rcvwnd", 1024, "receive window in segments")
	nodelay := f.String("nodelay", "1,10,2,1", "nodelay, interval, resend and nc of KCP")
	f.BoolVar(&o.writeDelay, "write-delay", false, "written data waits for the next update")
	f.BoolVar(&o.ackNoDelay, "ack-nodelay", true, "ACKs leave at once")
	f.UintVar(&o.rateLimit, "rate-limit", 0, "bytes a second; wire bytes for 5.6.72, application bytes for 5.7.5; 0 is no limit")
	f.BoolVar(&o.sink, "sink", false, "a server drops what it reads instead of returning it")
	f.IntVar(&o.bytes, "bytes", 1<<20, "bytes that a client sends")
	f.Uint64Var(&o.seed, "seed", 1, "of the bytes, and of what is lost")
	f.IntVar(&o.count, "count", 300, "clients at once")
	f.DurationVar(&o.gap, "gap", time.Millisecond, "time between the starts of two clients")
	f.Float64Var(&o.loss, "loss", 0, "`PERCENT` of datagrams lost each way, at the sockets of clients")
	seconds := f.Float64("seconds", 300, "after which the program ends")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.limit = time.Duration(*seconds * float64(time.Second))
	if o.stream = *mode == "stream"; !o.stream && *mode != "message" {
		return nil, fmt.Errorf("mode is %q: write stream or message", *mode)
	}
	if _, err := fmt.Sscanf(*fec, "%d/%d", &o.data, &o.parity); err != nil {
		return nil, fmt.Errorf("fec is %q: write DATA/PARITY, such as 10/3", *fec)
	}
	n := &o.nodelay
	if _, err := fmt.Sscanf(*nodelay, "%d,%d,%d,%d", &n[0], &n[1], &n[2], &n[3]); err != nil {
		return nil, fmt.Errorf("nodelay is %q: write four numbers, such as 1,10,2,1", *nodelay)
	}
	bytes, err := hex.DecodeString(*key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	o.block, err = block(*cipher, bytes)
	return o, err
}

func block(name string, key []byte) (kcp.BlockCrypt, error) {
	makers := map[string]func([]byte) (kcp.BlockCrypt, error){
		"null":     func([]byte) (kcp.BlockCrypt, error) { return nil, nil },
		"none":     kcp.NewNoneBlockCrypt,
		"aes":      kcp.NewAESBlockCrypt,
		"gcm":      kcp.NewAESGCMCrypt,
		"blowfish": kcp.NewBlowfishBlockCrypt,
		"cast5":    kcp.NewCast5BlockCrypt,
		"3des":     kcp.NewTripleDESBlockCrypt,
		"salsa20":  kcp.NewSalsa20BlockCrypt,
		"sm4":      kcp.NewSM4BlockCrypt,
		"tea":      kcp.NewTEABlockCrypt,
		"twofish":  kcp.NewTwofishBlockCrypt,
		"xor":      kcp.NewSimpleXORBlockCrypt,
		"xtea":     kcp.NewXTEABlockCrypt,
	}
	// The length of the key tells the sizes of AES apart.
	kind := map[string]string{
		"aes-128": "aes", "aes-192": "aes", "aes-256": "aes", "aes-128-gcm": "gcm", "aes-256-gcm": "gcm",
	}[name]
	if kind == "" {
		kind = name
	}
	maker := makers[kind]
	if maker == nil {
		return nil, fmt.Errorf("unknown cipher %q", name)
	}
	return maker(key)
}

// dial connects from a socket that kcp-go makes.
func (o *options) dial() (*kcp.UDPSession, error) {
	session, err := kcp.DialWithOptions(o.addr, o.block, o.data, o.parity)
	if err != nil {
		return nil, err
	}
	session.SetReadBuffer(socketBuffer)
	session.SetWriteBuffer(socketBuffer)
	o.apply(session)
	return session, nil
}

// dialLossy connects from a socket that loses datagrams each way.
func (o *options) dialLossy(seed uint64) (*kcp.UDPSession, error) {
	server, err := net.ResolveUDPAddr("udp", o.addr)
	if err != nil {
		return nil, err
	}
	// All from one address, which the server sees.
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	lossy := &lossySocket{PacketConn: socket, loss: o.loss / 100, random: random}
	session, err := kcp.NewConn3(random.Uint32(), server, o.block, o.data, o.parity, lossy)
	if err != nil {
		return nil, err
	}
	o.apply(session)
	return session, nil
}

// apply sets what a session has beyond cipher and FEC.
func (o *options) apply(session *kcp.UDPSession) {
	session.SetStreamMode(o.stream)
	session.SetMtu(o.mtu)
	session.SetWindowSize(o.sndwnd, o.rcvwnd)
	session.SetNoDelay(o.nodelay[0], o.nodelay[1], o.nodelay[2], o.nodelay[3])
	session.SetWriteDelay(o.writeDelay)
	session.SetACKNoDelay(o.ackNoDelay)
	if o.rateLimit > 0 {
		session.SetRateLimit(uint32(o.rateLimit))
	}
}

// lossySocket loses datagrams each way.
type lossySocket struct {
	net.PacketConn
	loss   float64
	lock   sync.Mutex
	random *rand.Rand
}

func (s *lossySocket) loses() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.random.Float64() < s.loss
}

func (s *lossySocket) WriteTo(packet []byte, addr net.Addr) (int, error) {
	if s.loses() {
		return len(packet), nil
	}
	return s.PacketConn.WriteTo(packet, addr)
}

func (s *lossySocket) ReadFrom(buffer []byte) (int, net.Addr, error) {
	for {
		n, addr, err := s.PacketConn.ReadFrom(buffer)
		if err != nil || !s.loses() {
			return n, addr, err
		}
	}
}

// splitMix is SplitMix64, eight bytes a number, the lowest first.
type splitMix struct {
	state uint64
	rest  []byte
}

func newSplitMix(seed uint64) *splitMix { return &splitMix{state: seed} }

func (r *splitMix) fill(out []byte) {
	for i := range out {
		if len(r.rest) == 0 {
			r.state += 0x9E3779B97F4A7C15
			z := r.state
			z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
			z = (z ^ z>>27) * 0x94D049BB133111EB
			z ^= z >> 31
			r.rest = make([]byte, 8)
			for k := range r.rest {
				r.rest[k] = byte(z >> (8 * k))
			}
		}
		out[i], r.rest = r.rest[0], r.rest[1:]
	}
}
