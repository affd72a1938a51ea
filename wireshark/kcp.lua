-- KCP for Wireshark and tshark: the wire format of docs/wire.md, without encryption.
--
-- Shows KCP segments as kcp-go and the C library send them, the CONTROL and REPAIR segments of kcpx, kcp-go's
-- FEC headers and out-of-band packets, the header of its cipher `none`, and smux frames inside the stream.
-- README.md has the command that installs it.
--
-- Lua 5.2 to 5.4: no `//` and no bitwise operators, and every number that is printed with %d is an integer.

local kcp = Proto("kcp", "KCP")

local HEADER = 24
local FEC_HEADER = 8
-- Nonce of 16 bytes and checksum of 4 of kcp-go's cipher `none`.
local NONE_HEADER = 20
local SMUX_HEADER = 8

local PUSH, ACK, WASK, WINS, CONTROL, REPAIR = 81, 82, 83, 84, 85, 86
local COMMANDS = {
    [PUSH] = "PUSH", [ACK] = "ACK", [WASK] = "WASK", [WINS] = "WINS", [CONTROL] = "CONTROL", [REPAIR] = "REPAIR",
}

local FIN, FIN_ACK, RST, RST_ACK, HELLO, HELLO_ACK, PATH = 1, 2, 3, 4, 5, 6, 7
local CONTROL_TYPES = {
    [FIN] = "FIN", [FIN_ACK] = "FIN-ACK", [RST] = "RST", [RST_ACK] = "RST-ACK",
    [HELLO] = "HELLO", [HELLO_ACK] = "HELLO-ACK", [PATH] = "PATH",
}

-- `frg` of a sender that supports CONTROL, and of the ACK of a segment that repair symbols recovered.
local CONTROL_CAPABLE, REPAIRED = 0xA5, 0xA6

local FEC_DATA, FEC_PARITY, OUT_OF_BAND = 0x00F1, 0x00F2, 0x00F3
local FEC_TYPES = { [FEC_DATA] = "data", [FEC_PARITY] = "parity", [OUT_OF_BAND] = "out-of-band" }

local SYN, SMUX_FIN, PSH, NOP, UPD = 0, 1, 2, 3, 4
local SMUX_COMMANDS = { [SYN] = "SYN", [SMUX_FIN] = "FIN", [PSH] = "PSH", [NOP] = "NOP", [UPD] = "UPD" }

-- A number at least this far behind is a ping's: its sender subtracts 2^30.
local FAR_BEHIND = -536870912
-- The largest REPAIR window, in segments.
local MAX_WINDOW = 64
-- Bytes of the info column's list of segments, and smux frames in it.
local MAX_INFO, MAX_INFO_FRAMES = 200, 3
-- The first bytes of a snappy stream, which kcptun puts around smux unless it runs with --nocomp.
local SNAPPY = "\255\6\0\0sNaPpY"

local f = {
    conv = ProtoField.uint32("kcp.conv", "Conversation", base.HEX_DEC),
    cmd = ProtoField.uint8("kcp.cmd", "Command", base.DEC, COMMANDS),
    frg = ProtoField.uint8("kcp.frg", "Fragments after this one", base.DEC),
    wnd = ProtoField.uint16("kcp.wnd", "Window", base.DEC, nil, nil, "Segments that the sender can still take"),
    ts = ProtoField.uint32("kcp.ts", "Timestamp", base.DEC),
    sn = ProtoField.uint32("kcp.sn", "Segment number", base.DEC),
    una = ProtoField.uint32("kcp.una", "Next expected number", base.DEC, nil, nil,
        "All numbers below are acknowledged"),
    len = ProtoField.uint32("kcp.len", "Payload length", base.DEC),
    payload = ProtoField.bytes("kcp.payload", "Payload"),

    control_type = ProtoField.uint8("kcp.control.type", "Control type", base.DEC, CONTROL_TYPES),
    control_capable = ProtoField.bool("kcp.control_capable", "Supports CONTROL"),
    capabilities = ProtoField.uint32("kcp.capabilities", "Capabilities", base.HEX),
    capability_repair = ProtoField.bool("kcp.capabilities.repair", "REPAIR", 32, nil, 1),
    capability_datagrams = ProtoField.bool("kcp.capabilities.datagrams", "Datagrams", 32, nil, 2),
    capability_paths = ProtoField.bool("kcp.capabilities.paths", "Further paths", 32, nil, 4),
    path = ProtoField.uint32("kcp.path", "Path number", base.DEC),
    reset_all_read = ProtoField.bool("kcp.reset.all_read", "FIN was acknowledged, and all data was read"),
    attempt = ProtoField.uint32("kcp.attempt", "Name of the connection attempt", base.HEX),
    ping = ProtoField.bool("kcp.ping", "Ping"),
    pong = ProtoField.bool("kcp.pong", "Answer to a ping"),
    retry = ProtoField.bool("kcp.retry", "Retry"),
    mtu_probe = ProtoField.bool("kcp.mtu_probe", "MTU probe"),

    repair_first = ProtoField.uint32("kcp.repair.first", "First segment covered", base.DEC),
    repair_count = ProtoField.uint8("kcp.repair.count", "Segments covered", base.DEC),
    repair_key = ProtoField.uint32("kcp.repair.key", "Repair key", base.HEX),
    repaired = ProtoField.bool("kcp.repaired", "Recovered from repair symbols"),

    fec_seqid = ProtoField.uint32("kcp.fec.seqid", "Sequence id", base.DEC),
    fec_type = ProtoField.uint16("kcp.fec.type", "Type", base.HEX, FEC_TYPES),
    fec_size = ProtoField.uint16("kcp.fec.size", "Size", base.DEC, nil, nil, "Bytes from this field on"),
    fec_parity = ProtoField.bytes("kcp.fec.parity", "Parity"),

    datagram = ProtoField.bytes("kcp.datagram", "Datagram"),

    nonce = ProtoField.bytes("kcp.nonce", "Nonce"),
    checksum = ProtoField.uint32("kcp.checksum", "Checksum", base.HEX),

    smux_version = ProtoField.uint8("kcp.smux.version", "Version", base.DEC),
    smux_cmd = ProtoField.uint8("kcp.smux.cmd", "Command", base.DEC, SMUX_COMMANDS),
    smux_length = ProtoField.uint16("kcp.smux.length", "Length", base.DEC),
    smux_sid = ProtoField.uint32("kcp.smux.sid", "Stream id", base.DEC),
    smux_consumed = ProtoField.uint32("kcp.smux.consumed", "Bytes read by the application", base.DEC),
    smux_window = ProtoField.uint32("kcp.smux.window", "Window in bytes", base.DEC),
    smux_data = ProtoField.bytes("kcp.smux.data", "Data"),
    smux_rest = ProtoField.bytes("kcp.smux.continuation", "Data of a frame that began before"),

    retransmission_of = ProtoField.framenum("kcp.retransmission_of", "First sent in frame", base.NONE,
        frametype.RETRANS_PREV),
    acked_in = ProtoField.framenum("kcp.acked_in", "Acknowledged in frame", base.NONE, frametype.RESPONSE),
    ack_to = ProtoField.framenum("kcp.ack_to", "Acknowledges the segment in frame", base.NONE, frametype.ACK),
    ack_rtt = ProtoField.relative_time("kcp.ack_rtt", "Time since that transmission"),
}

local e = {
    malformed = ProtoExpert.new("kcp.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
    truncated = ProtoExpert.new("kcp.truncated", "The capture has a part of this datagram only",
        expert.group.UNDECODED, expert.severity.NOTE),
    trailing = ProtoExpert.new("kcp.trailing", "Bytes behind the last segment, too few for a header",
        expert.group.PROTOCOL, expert.severity.WARN),
    undecoded = ProtoExpert.new("kcp.undecoded", "Not plain KCP: encrypted, or another protocol",
        expert.group.UNDECODED, expert.severity.WARN),
    retransmission = ProtoExpert.new("kcp.analysis.retransmission", "Retransmission",
        expert.group.SEQUENCE, expert.severity.NOTE),
    duplicate = ProtoExpert.new("kcp.analysis.duplicate", "Duplicate of a transmission, with its timestamp",
        expert.group.SEQUENCE, expert.severity.NOTE),
    other_conversation = ProtoExpert.new("kcp.other_conversation",
        "Segments of several conversations: several datagrams that the capture has as one, or malformed",
        expert.group.PROTOCOL, expert.severity.WARN),
    zero_window = ProtoExpert.new("kcp.analysis.zero_window", "The window is closed",
        expert.group.SEQUENCE, expert.severity.NOTE),
    reset = ProtoExpert.new("kcp.analysis.reset", "Connection reset", expert.group.SEQUENCE, expert.severity.WARN),
    compressed = ProtoExpert.new("kcp.compressed", "Compressed stream (snappy): its smux frames are not shown",
        expert.group.UNDECODED, expert.severity.CHAT),
}

do
    local fields, experts = {}, {}
    for _, field in pairs(f) do fields[#fields + 1] = field end
    for _, info in pairs(e) do experts[#experts + 1] = info end
    kcp.fields = fields
    kcp.experts = experts
end

kcp.prefs.udp_ports = Pref.range("UDP ports", "", "Ports whose datagrams are KCP, whatever they look like", 65535)
kcp.prefs.smux = Pref.bool("Show smux frames", true, "Shows smux frames of versions 1 and 2 in the stream")

-- What the first pass over a capture has learned. `connections` has both directions of each, by addresses and
-- conversation; `results` has by frame what it said about each segment, for the passes that follow.
local connections, results = {}, {}

function kcp.init()
    connections, results = {}, {}
end

-- `len` bytes from `at` on, as a string.
local function raw(tvb, at, len) return len > 0 and tvb:raw(at, len) or "" end

local function u16(tvb, at) return tvb(at, 2):le_uint() end
local function u32(tvb, at) return tvb(at, 4):le_uint() end

-- a - b of numbers that wrap.
local function distance(a, b)
    local d = (a - b) % 4294967296
    if d >= 2147483648 then return d - 4294967296 end
    return d
end

local function has_bit(value, number) return math.floor(value / number) % 2 == 1 end

-- Lua 5.2 has `bit32`, and Wireshark adds `bit` to each Lua.
local bits = rawget(_G, "bit32") or rawget(_G, "bit")
local crc_table

-- CRC32 (IEEE) of the bytes from `at` on.
local function crc32(tvb, at)
    local xor, band, shift = bits.bxor, bits.band, bits.rshift
    if not crc_table then
        crc_table = {}
        for byte = 0, 255 do
            local value = byte
            for _ = 1, 8 do
                local low = band(value, 1)
                value = shift(value, 1)
                if low == 1 then value = xor(value, 0xEDB88320) end
            end
            crc_table[byte] = value
        end
    end
    local bytes = raw(tvb, at, tvb:len() - at)
    local crc = xor(0, -1)
    for i = 1, #bytes do
        crc = xor(crc_table[band(xor(crc, bytes:byte(i)), 255)], shift(crc, 8))
    end
    return xor(crc, -1) % 4294967296
end

-- Recognising ---------------------------------------------------------------------------------------------------

-- Whether a segment with these fields can be one. Strict, since foreign datagrams come here too: other values of
-- `frg` are legal where a receiver ignores them, but none of the known senders writes them.
local function plausible(cmd, frg, len)
    if cmd == PUSH then
        if len == 0 then return frg == 0 or frg == CONTROL_CAPABLE end
        return frg < 128 or frg == CONTROL_CAPABLE
    end
    if cmd == REPAIR then return frg >= 1 and frg <= MAX_WINDOW and len >= 3 end
    if len ~= 0 then return false end
    if cmd == ACK then return frg == 0 or frg == CONTROL_CAPABLE or frg == REPAIRED end
    if cmd == WASK or cmd == WINS then return frg == 0 or frg == CONTROL_CAPABLE end
    return cmd == CONTROL and CONTROL_TYPES[frg] ~= nil
end

-- The byte behind the FEC or out-of-band packet that begins at `at`, where FEC_HEADER bytes are captured. With UDP
-- segmentation offload (GSO, GRO) a capture has several datagrams as one: all as long as the first, `stride`, and
-- the last one not longer.
local function end_of_packet(tvb, at, stride)
    local total = tvb:reported_len()
    if u16(tvb, at + 4) ~= FEC_PARITY then return at + 6 + u16(tvb, at + 6) end
    -- Parity does not say how long it is.
    if stride then return math.min(at + stride, total) end
    local following = Struct.pack("<I4I2", (u32(tvb, at) + 1) % 4294967296, FEC_PARITY)
    local found = raw(tvb, at, tvb:len() - at):find(following, FEC_HEADER + 1, true)
    return found and at + found - 1 or total
end

local function begins_fec(tvb, at)
    return tvb:len() - at >= FEC_HEADER and FEC_TYPES[u16(tvb, at + 4)] ~= nil
end

-- The byte behind the segments that begin at `at`: `stop`, or where another packet of the batch begins. Returns nil
-- if they are no segments, and `at` if the capture ends before the first one does.
local function end_of_segments(tvb, at, stop)
    local captured = tvb:len()
    local first = at
    while at < stop do
        if stop - at < HEADER then return nil end
        -- The capture ends here: the segments before it decide.
        if captured - at < HEADER then return at > first and stop or at end
        if at > first and begins_fec(tvb, at) then return at end
        local len = u32(tvb, at + 20)
        if len > stop - at - HEADER then return nil end
        if not plausible(tvb(at + 4, 1):uint(), tvb(at + 5, 1):uint(), len) then return nil end
        -- Another connection to the same peer.
        if u32(tvb, at) ~= u32(tvb, first) then return at end
        at = at + HEADER + len
    end
    return at
end

-- Whether packets without cipher fill the datagram from `at` to its last byte, with enough in them that cannot be
-- chance. Parity alone has not: it follows other packets between the same addresses.
local function is_plain(tvb, at)
    local captured, total = tvb:len(), tvb:reported_len()
    local convincing = false
    local stride
    while at < total do
        if captured - at < FEC_HEADER + 4 then return convincing and captured < total end
        local stop
        local kind = u16(tvb, at + 4)
        if FEC_TYPES[kind] then
            stop = end_of_packet(tvb, at, stride)
            if stop > total or stop < at + FEC_HEADER then return false end
        end
        if kind == FEC_DATA then
            if end_of_segments(tvb, at + FEC_HEADER, stop) ~= stop then return false end
            convincing = true
        elseif kind == OUT_OF_BAND then
            if u32(tvb, at) ~= 4294967295 or stop < at + FEC_HEADER + 4 then return false end
            convincing = true
        elseif kind ~= FEC_PARITY then
            stop = end_of_segments(tvb, at, total)
            if not stop or stop == at then return false end
            convincing = true
        end
        stride = stride or stop - at
        at = stop
    end
    return convincing
end

-- Whether the datagram has the header of kcp-go's cipher `none`: a checksum, right, and something behind it.
local function has_none_header(tvb)
    local at = NONE_HEADER
    if tvb:len() < at + FEC_HEADER + 4 or tvb:len() < tvb:reported_len() then return false end
    if not is_plain(tvb, at) and u16(tvb, at + 4) ~= FEC_PARITY then return false end
    return bits ~= nil and crc32(tvb, at) == u32(tvb, 16)
end

-- What the first pass learns ------------------------------------------------------------------------------------

local function direction()
    -- `sent` has by number the first transmission of each segment, and `more` the others, by timestamp. `una` is
    -- the latest that this side sent. `next` is the number behind the last segment in order, and `left` where
    -- smux frames begin in it: bytes that still belong to the frame before, nil if that is not known.
    return { sent = {}, pings = {}, next = 0, left = 0, head = "" }
end

-- The connection, the direction of this frame, and the other one.
local function connection_of(pinfo, conv)
    local from = tostring(pinfo.src) .. " " .. pinfo.src_port
    local to = tostring(pinfo.dst) .. " " .. pinfo.dst_port
    local low, high = from, to
    if high < low then low, high = to, from end
    local key = low .. " " .. high .. " " .. conv
    local connection = connections[key]
    if not connection then
        connection = { [from] = direction(), [to] = direction() }
        connections[key] = connection
    end
    return connection, connection[from], connection[to]
end

-- Results of a segment of this frame; new ones in the first pass.
local function result_of(pinfo, index)
    local frame = results[pinfo.number]
    if not frame then
        frame = {}
        results[pinfo.number] = frame
    end
    -- A frame may have several datagrams, such as one in a tunnel and its copy.
    local key = pinfo.src_port .. ">" .. pinfo.dst_port .. " " .. index
    local fresh = frame[key] == nil and not pinfo.visited
    if fresh then frame[key] = {} end
    return frame[key] or {}, fresh
end

-- The payload of a segment as the bytes of an smux stream. Returns the frames that begin or end in it, where they
-- are whole or cut off by the end of the segment, and the state behind it: bytes left of the last frame, and the
-- bytes of a header that is cut off. Returns nil if these are no frames.
local function smux_frames(bytes, left, head, version)
    local frames = {}
    local at = 0
    if left > 0 then
        local take = math.min(left, #bytes)
        frames[1] = { rest = take, at = 0 }
        at = take
        left = left - take
    end
    while at < #bytes do
        if #head + #bytes - at < SMUX_HEADER then
            head = head .. bytes:sub(at + 1)
            local byte = head:byte(1)
            if byte ~= 1 and byte ~= 2 or version and byte ~= version then return nil end
            return frames, 0, head
        end
        local header = head .. bytes:sub(at + 1, at + SMUX_HEADER - #head)
        local b = { header:byte(1, SMUX_HEADER) }
        local frame = {
            version = b[1], cmd = b[2], length = b[3] + 256 * b[4],
            sid = b[5] + 256 * b[6] + 65536 * b[7] + 16777216 * b[8],
            -- Before the segment, if its header began in the one before.
            at = at - #head,
        }
        if frame.version ~= 1 and frame.version ~= 2 or version and frame.version ~= version then return nil end
        if not SMUX_COMMANDS[frame.cmd] then return nil end
        if frame.cmd == UPD and (frame.version ~= 2 or frame.length ~= 8) then return nil end
        if (frame.cmd == SYN or frame.cmd == SMUX_FIN or frame.cmd == NOP) and frame.length ~= 0 then return nil end
        version = frame.version
        at = at + SMUX_HEADER - #head
        head = ""
        frame.body = math.min(frame.length, #bytes - at)
        frames[#frames + 1] = frame
        at = at + frame.body
        left = frame.length - frame.body
    end
    return frames, left, head
end

-- Whether frames that begin a payload are convincing where nothing else says that this is smux.
local function convincing(frames, left)
    local first, last = frames[1], frames[#frames]
    if not first or first.rest then return false end
    if first.cmd == NOP then return first.sid == 0 end
    -- Ids are odd at the client and even at the server, from 2 on, and count up.
    if first.sid < 2 or first.sid > 1048576 then return false end
    if first.cmd == PSH and first.length == 0 then return false end
    return first.cmd ~= PSH or left == 0 or first ~= last or first.body > 0
end

-- Follows the stream of one direction through a new segment, and notes where frames are in it.
local function follow_smux(connection, side, segment, bytes, result)
    local ahead = distance(segment.sn, side.next)
    -- Fills a gap: frames after it were looked for already.
    local late = ahead < 0
    local left, head = nil, ""
    if ahead == 0 then left, head = side.left, side.head end
    if segment.sn == 0 and bytes:sub(1, #SNAPPY) == SNAPPY then connection.compressed = true end
    if connection.compressed then return end
    local known = connection.smux and left
    if not known then left, head = 0, "" end
    local frames, left_after, head_after = smux_frames(bytes, left, head, connection.smux)
    if frames and not known and not (connection.smux and #frames > 0) and not convincing(frames, left_after) then
        frames = nil
    end
    if frames then
        if not connection.smux and frames[1] then connection.smux = frames[1].version end
        result.smux = { left = left, head = head, version = connection.smux }
    end
    if late then return end
    side.next = (segment.sn + 1) % 4294967296
    side.head = head_after or ""
    -- Bytes that the capture cut off belong to the last frame, unless they go beyond it.
    local missing = segment.len - #bytes
    if not frames or missing > left_after then
        side.left = nil
    else
        side.left = left_after - missing
    end
end

-- Whether a PUSH is no data: its number is far behind what the peer has acknowledged.
local function is_ping(segment, peer)
    return segment.cmd == PUSH and distance(segment.sn, peer.una or 0) <= FAR_BEHIND
end

local function learn_push(segment, connection, side, frame, now, bytes, result)
    local sent = side.sent[segment.sn]
    local transmission = { frame = frame, time = now, ts = segment.ts }
    result.transmission = transmission
    if not sent then
        side.sent[segment.sn] = transmission
        follow_smux(connection, side, segment, bytes, result)
        transmission.smux = result.smux
        return
    end
    result.first = sent.frame
    result.smux = sent.smux
    sent.more = sent.more or {}
    result.duplicate = sent.ts == segment.ts or sent.more[segment.ts] ~= nil
    sent.more[segment.ts] = transmission
end

local function learn_ping(segment, side, frame, now, result)
    local earlier = side.pings[segment.ts]
    result.ping = true
    result.first = earlier and earlier.frame
    result.transmission = { frame = frame, time = now }
    side.pings[segment.ts] = result.transmission
end

local function learn_ack(segment, peer, frame, now, result)
    local transmission
    if distance(segment.sn, segment.una) <= FAR_BEHIND then
        result.pong = true
        transmission = peer.pings[segment.ts]
    elseif segment.frg ~= REPAIRED then
        transmission = peer.sent[segment.sn]
        if transmission and transmission.more and transmission.more[segment.ts] then
            transmission = transmission.more[segment.ts]
        elseif transmission and transmission.ts ~= segment.ts then
            transmission = nil
        end
    end
    if not transmission then return end
    result.ack_to = transmission.frame
    -- The first answer alone has a meaning as time.
    if not transmission.acked then
        transmission.acked = frame
        result.rtt = now - transmission.time
    end
end

-- The first pass: what this segment is to those before it.
local function learn(segment, bytes, pinfo, result)
    local connection, side, peer = connection_of(pinfo, segment.conv)
    local frame, now = pinfo.number, pinfo.rel_ts
    if is_ping(segment, peer) then
        learn_ping(segment, side, frame, now, result)
    elseif segment.cmd == PUSH then
        learn_push(segment, connection, side, frame, now, bytes, result)
    elseif segment.cmd == ACK then
        learn_ack(segment, peer, frame, now, result)
    end
    result.compressed = connection.compressed
    -- A RST may be of a process that has no state.
    local reset = segment.cmd == CONTROL and segment.frg == RST
    if not reset and (not side.una or distance(segment.una, side.una) > 0) then side.una = segment.una end
end

-- Showing -------------------------------------------------------------------------------------------------------

local function generated(tree, field, value)
    tree:add(field, value):set_generated()
end

local function add_seconds(tree, field, seconds)
    local whole = math.floor(seconds)
    generated(tree, field, NSTime.new(whole, math.floor((seconds - whole) * 1e9 + 0.5)))
end

-- The list of segments in the info column.
local Info = {}
Info.__index = Info

-- `last` is about the last segment, and `segments` their number.
function Info.new() return setmetatable({ parts = {}, size = 0, last = "", segments = 0 }, Info) end

function Info:add(text)
    if self.size > MAX_INFO then
        if not self.full then self.parts[#self.parts + 1] = "..." end
        self.full = true
        return
    end
    self.parts[#self.parts + 1] = text
    self.size = self.size + #text
    self.run = nil
end

-- Segments of consecutive numbers are one range, with the sum of their lengths if they have any.
function Info:segment(title, sn, len)
    local run = self.run
    if run and run.title == title and run.last + 1 == sn then
        run.last = sn
        run.len = run.len and run.len + len
        self.parts[run.place] = string.format("[%s] Sn=%d..%d", title, run.first, sn)
            .. (run.len and string.format(" Len=%d", run.len) or "")
        return
    end
    self:add(string.format("[%s] Sn=%d", title, sn) .. (len and string.format(" Len=%d", len) or ""))
    if not self.full then self.run = { title = title, first = sn, last = sn, len = len, place = #self.parts } end
end

function Info:show(pinfo)
    pinfo.cols.info:set(string.format("%d → %d %s%s", pinfo.src_port, pinfo.dst_port,
        table.concat(self.parts, " "), self.last))
end

local function show_smux(tvb, at, stop, tree, result, info)
    local bytes = raw(tvb, at, stop - at)
    local smux = result.smux
    local frames, left = smux_frames(bytes, smux.left, smux.head, smux.version)
    for i, frame in ipairs(frames or {}) do
        if frame.rest then
            tree:add(f.smux_rest, tvb(at, frame.rest))
        else
            local begin = math.max(at + frame.at, at)
            local body = at + frame.at + SMUX_HEADER
            local name = SMUX_COMMANDS[frame.cmd]
            local item = tree:add(kcp, tvb(begin, body + frame.body - begin), string.format(
                "smux version %d, %s, Stream: %d, Length: %d", frame.version, name, frame.sid, frame.length))
            if frame.at >= 0 then
                item:add_le(f.smux_version, tvb(begin, 1))
                item:add_le(f.smux_cmd, tvb(begin + 1, 1))
                item:add_le(f.smux_length, tvb(begin + 2, 2))
                item:add_le(f.smux_sid, tvb(begin + 4, 4))
            else
                -- A part of the header is in the segment before.
                generated(item, f.smux_version, frame.version)
                generated(item, f.smux_cmd, frame.cmd)
                generated(item, f.smux_length, frame.length)
                generated(item, f.smux_sid, frame.sid)
            end
            if frame.cmd == UPD and frame.body == 8 then
                item:add_le(f.smux_consumed, tvb(body, 4))
                item:add_le(f.smux_window, tvb(body + 4, 4))
            elseif frame.body > 0 then
                item:add(f.smux_data, tvb(body, frame.body))
            end
            if i == #frames and left > 0 then
                item:append_text(string.format(", %d bytes in the next segments", left))
            end
            if i <= MAX_INFO_FRAMES then
                info:add(string.format("smux %s Sid=%d Len=%d", name, frame.sid, frame.length))
            end
        end
    end
end

local function show_control(tvb, at, tree, segment)
    tree:add(f.control_type, tvb(at + 5, 1))
    if segment.frg == HELLO or segment.frg == HELLO_ACK then
        local item = tree:add_le(f.capabilities, tvb(at + 12, 4))
        for _, field in ipairs({ f.capability_repair, f.capability_datagrams, f.capability_paths }) do
            item:add_le(field, tvb(at + 12, 4))
        end
    elseif segment.frg == PATH then
        tree:add_le(f.path, tvb(at + 12, 4))
    elseif segment.frg == RST then
        generated(tree, f.reset_all_read, segment.wnd == 65535)
        tree:add_proto_expert_info(e.reset)
    end
end

-- The word in the brackets of the info column.
local function title_of(segment, result)
    local title = COMMANDS[segment.cmd]
    if segment.cmd == CONTROL then return CONTROL_TYPES[segment.frg] or "CONTROL" end
    if segment.cmd == ACK then
        if result.pong then return "PONG" end
        return segment.frg == REPAIRED and "ACK Repaired" or title
    end
    if segment.cmd == WASK then return segment.initial and "OPEN" or title end
    if segment.cmd ~= PUSH then return title end
    if result.ping then
        title = segment.retry and "RETRY" or segment.len > 0 and "MTU PROBE" or "PING"
    end
    if result.duplicate then return title .. " Duplicate" end
    if result.first then return title .. " Retransmission" end
    return title
end

local function add_to_info(info, segment, title)
    if segment.cmd == ACK then
        info:segment(title, segment.sn)
    elseif segment.cmd == PUSH then
        info:segment(title, segment.sn, segment.len)
    elseif segment.cmd == REPAIR then
        local last = segment.sn + math.max(segment.frg, 1) - 1
        info:add(string.format("[%s] Sn=%d..%d Len=%d", title, segment.sn, last, segment.len))
    elseif segment.cmd == CONTROL and (segment.frg == HELLO or segment.frg == HELLO_ACK) then
        local names = {}
        if has_bit(segment.sn, 1) then names[#names + 1] = "repair" end
        if has_bit(segment.sn, 2) then names[#names + 1] = "datagrams" end
        if has_bit(segment.sn, 4) then names[#names + 1] = "paths" end
        info:add(string.format("[%s] %s", title, #names > 0 and table.concat(names, "+") or "nothing"))
    elseif segment.cmd == CONTROL and segment.frg == PATH then
        info:add(string.format("[%s] %d", title, segment.sn))
    elseif segment.cmd == CONTROL then
        info:add(string.format("[%s] Sn=%d", title, segment.sn))
    else
        info:add(string.format("[%s]", title))
    end
end

-- What kcpx says with fields that have another meaning elsewhere.
local function show_meaning(tvb, at, tree, segment, result)
    local cmd, frg = segment.cmd, segment.frg
    if cmd == CONTROL then
        show_control(tvb, at, tree, segment)
    elseif cmd == REPAIR then
        tree:add_le(f.repair_first, tvb(at + 12, 4))
        tree:add(f.repair_count, tvb(at + 5, 1))
        tree:add_le(f.repair_key, tvb(at + 8, 4))
    elseif frg == CONTROL_CAPABLE and (cmd ~= PUSH or result.ping) then
        generated(tree, f.control_capable, true)
    end
    if cmd == ACK and frg == REPAIRED then
        generated(tree, f.repaired, true)
        tree:add_le(f.repair_key, tvb(at + 8, 4))
    end
    if segment.initial then tree:add_le(f.attempt, tvb(at + 8, 4)) end
    if result.ping and segment.retry then
        generated(tree, f.retry, true)
    elseif result.ping and segment.len > 0 then
        generated(tree, f.mtu_probe, true)
    elseif result.ping then
        generated(tree, f.ping, true)
    end
    if result.pong then generated(tree, f.pong, true) end
end

local function show_analysis(tree, segment, result)
    if result.first then
        generated(tree, f.retransmission_of, result.first)
        tree:add_proto_expert_info(result.duplicate and e.duplicate or e.retransmission)
    end
    if result.transmission and result.transmission.acked then
        generated(tree, f.acked_in, result.transmission.acked)
    end
    if result.ack_to then generated(tree, f.ack_to, result.ack_to) end
    if result.rtt then add_seconds(tree, f.ack_rtt, result.rtt) end
    if segment.wnd == 0 and segment.cmd ~= CONTROL then tree:add_proto_expert_info(e.zero_window) end
end

local function read_segment(tvb, at)
    local segment = {
        conv = u32(tvb, at), cmd = tvb(at + 4, 1):uint(), frg = tvb(at + 5, 1):uint(), wnd = u16(tvb, at + 6),
        ts = u32(tvb, at + 8), sn = u32(tvb, at + 12), una = u32(tvb, at + 16), len = u32(tvb, at + 20),
    }
    -- The WASK with which kcpx opens a connection before there is data.
    segment.initial = segment.cmd == WASK and segment.frg == CONTROL_CAPABLE and segment.ts ~= 0 and segment.una == 0
    segment.retry = segment.wnd == 1 and segment.una == 0 and segment.len == 0
        and segment.sn >= 0xA0000001 and segment.sn < 0xC0000000 and segment.sn % 2 == 1
    return segment
end

-- One segment, whole in the datagram or cut off by the capture.
local function show_segment(tvb, at, pinfo, tree, segment, info)
    local captured = tvb:len()
    local stop = math.min(at + HEADER + segment.len, captured)
    info.segments = info.segments + 1
    local result, fresh = result_of(pinfo, info.segments)
    if fresh then learn(segment, raw(tvb, at + HEADER, stop - at - HEADER), pinfo, result) end
    local title = title_of(segment, result)
    local item = tree:add(kcp, tvb(at, stop - at), string.format(
        "%s, Sn: %d, Una: %d, Wnd: %d, Len: %d", title, segment.sn, segment.una, segment.wnd, segment.len))
    item:add_le(f.conv, tvb(at, 4))
    item:add_le(f.cmd, tvb(at + 4, 1))
    item:add_le(f.frg, tvb(at + 5, 1))
    item:add_le(f.wnd, tvb(at + 6, 2))
    item:add_le(f.ts, tvb(at + 8, 4))
    item:add_le(f.sn, tvb(at + 12, 4))
    item:add_le(f.una, tvb(at + 16, 4))
    item:add_le(f.len, tvb(at + 20, 4))
    show_meaning(tvb, at, item, segment, result)
    show_analysis(item, segment, result)
    add_to_info(info, segment, title)
    info.last = string.format(" Una=%d Wnd=%d Conv=0x%08x", segment.una, segment.wnd, segment.conv)
    if stop > at + HEADER then
        item:add(f.payload, tvb(at + HEADER, stop - at - HEADER))
        if segment.cmd == PUSH and result.compressed then
            item:add_proto_expert_info(e.compressed)
        elseif segment.cmd == PUSH and result.smux and kcp.prefs.smux then
            show_smux(tvb, at + HEADER, stop, item, result, info)
        end
    end
end

-- Whether there is something to show from `at` on, malformed or not.
local function begins_plain(tvb, at)
    if tvb:len() - at < FEC_HEADER then return false end
    return FEC_TYPES[u16(tvb, at + 4)] ~= nil or COMMANDS[tvb(at + 4, 1):uint()] ~= nil
end

-- The segments from `at` to `stop`. Returns where another packet of a batch begins, else `stop`.
local function show_segments(tvb, at, stop, pinfo, tree, info)
    local captured = tvb:len()
    local first
    local function malformed(text)
        local item = tree
        if at < captured then item = tree:add(kcp, tvb(at, math.min(stop, captured) - at), "Malformed segment") end
        item:add_proto_expert_info(e.malformed, text)
        info:add("[Malformed]")
        return stop
    end
    -- Each turn is at least a header further.
    while at < stop do
        if stop - at < HEADER then
            if not first then
                return malformed(string.format("A segment has at least %d bytes, %d are left", HEADER, stop - at))
            end
            tree:add_proto_expert_info(e.trailing)
            return stop
        end
        if captured - at < HEADER then return stop end
        if first and begins_fec(tvb, at) then return at end
        local segment = read_segment(tvb, at)
        if not COMMANDS[segment.cmd] then return malformed(string.format("Unknown command %d", segment.cmd)) end
        if segment.len > stop - at - HEADER then
            return malformed(string.format("Payload of %d bytes, but %d are left", segment.len, stop - at - HEADER))
        end
        if first and segment.conv ~= first then tree:add_proto_expert_info(e.other_conversation) end
        first = segment.conv
        show_segment(tvb, at, pinfo, tree, segment, info)
        at = at + HEADER + segment.len
    end
    return at
end

local function show_fec_header(tvb, at, tree, kind)
    local size = kind == FEC_PARITY and 6 or FEC_HEADER
    local name = kind == OUT_OF_BAND and "Out-of-band header" or "FEC header, " .. FEC_TYPES[kind]
    local item = tree:add(kcp, tvb(at, size), string.format("%s, Sequence id: %d", name, u32(tvb, at)))
    item:add_le(f.fec_seqid, tvb(at, 4))
    item:add_le(f.fec_type, tvb(at + 4, 2))
    -- The size of parity is a part of what the code computes.
    if kind ~= FEC_PARITY then item:add_le(f.fec_size, tvb(at + 6, 2)) end
    return item
end

local function show_out_of_band(tvb, at, stop, tree, header, info)
    local captured = tvb:len()
    local body = at + FEC_HEADER + 4
    if stop < body then
        header:add_proto_expert_info(e.malformed, "The conversation is missing")
        info:add("[DATAGRAM]")
        return
    end
    info:add(string.format("[DATAGRAM] Len=%d", stop - body))
    if captured < body then return end
    tree:add_le(f.conv, tvb(body - 4, 4))
    info.last = string.format(" Conv=0x%08x", u32(tvb, body - 4))
    local last = math.min(stop, captured)
    if last > body then tree:add(f.datagram, tvb(body, last - body)) end
end

-- A packet without cipher from `at` on, where at least FEC_HEADER bytes are captured. Returns where it ends.
local function show_packet(tvb, at, stride, pinfo, tree, info)
    local captured, total = tvb:len(), tvb:reported_len()
    local kind = u16(tvb, at + 4)
    if not FEC_TYPES[kind] then return show_segments(tvb, at, total, pinfo, tree, info) end
    local header = show_fec_header(tvb, at, tree, kind)
    local seqid = u32(tvb, at)
    local stop = end_of_packet(tvb, at, stride)
    local is_last = stop == total or captured < stop + FEC_HEADER
    if stop > total or stop < at + FEC_HEADER or not is_last and not begins_plain(tvb, stop) then
        header:add_proto_expert_info(e.malformed, string.format(
            "The size is %d, but %d bytes follow", u16(tvb, at + 6), total - at - 6))
        stop = total
    end
    if kind == FEC_PARITY then
        tree:add(f.fec_parity, tvb(at + 6, math.min(stop, captured) - at - 6))
        info:add(string.format("[FEC parity] Seqid=%d Len=%d", seqid, stop - at - 6))
    elseif kind == FEC_DATA then
        info:add(string.format("FEC=%d", seqid))
        show_segments(tvb, at + FEC_HEADER, stop, pinfo, tree, info)
    else
        show_out_of_band(tvb, at, stop, tree, header, info)
    end
    return stop
end

local function dissect(tvb, pinfo, root)
    local captured = tvb:len()
    if captured == 0 then return 0 end
    pinfo.cols.protocol:set("KCP")
    local tree = root:add(kcp, tvb())
    local info = Info.new()
    local at = 0
    -- Plain first: it is the usual case, and cheap.
    if not is_plain(tvb, 0) and has_none_header(tvb) then
        tree:add(f.nonce, tvb(0, 16))
        tree:add_le(f.checksum, tvb(16, 4))
        at = NONE_HEADER
    end
    if not begins_plain(tvb, at) then
        local cut_off = captured < FEC_HEADER and captured < tvb:reported_len()
        tree:add_proto_expert_info(cut_off and e.truncated or e.undecoded)
        info:add("[Not plain KCP]")
        info:add(string.format("Len=%d", tvb:reported_len()))
        info:show(pinfo)
        return captured
    end
    local total = tvb:reported_len()
    local stride
    -- Each turn is at least FEC_HEADER bytes further.
    while at < total and captured - at >= FEC_HEADER do
        local stop = show_packet(tvb, at, stride, pinfo, tree, info)
        stride = stride or stop - at
        at = stop
    end
    if captured < total then tree:add_proto_expert_info(e.truncated) end
    info:show(pinfo)
    return captured
end

kcp.dissector = dissect

-- Takes a datagram only if all of it is KCP, and then the others between its addresses.
local function heuristic(tvb, pinfo, root)
    if not is_plain(tvb, 0) and not has_none_header(tvb) then return false end
    pinfo.conversation = kcp
    dissect(tvb, pinfo, root)
    return true
end

kcp:register_heuristic("udp", heuristic)

local udp_ports = DissectorTable.get("udp.port")
udp_ports:add_for_decode_as(kcp)

local registered = ""
function kcp.prefs_changed()
    if kcp.prefs.udp_ports == registered then return end
    if registered ~= "" then udp_ports:remove(registered, kcp) end
    registered = kcp.prefs.udp_ports
    if registered ~= "" then udp_ports:add(registered, kcp) end
end
