package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is the queue of one actor, unbounded, behind the library's interface.
// The library's own takes two locks, six atomic operations and an allocation to
// do this for a message.
//
// One goroutine at a time handles messages: one that waits for an answer anyway, or
// one that is lent.
type mailbox struct {
	invoker    actor.MessageInvoker
	dispatcher actor.Dispatcher
	process    func() // work, made once

	mu struct {
		sync.Mutex
		user, system queue
		taken        uint64 // user messages so far
		suspended    bool   // by the library's supervision: no user messages
		running      bool   // a goroutine handles messages
		called       bool   // one was asked for, and has not come yet
	}
}

func newMailbox() *mailbox {
	m := new(mailbox)
	m.process = m.work
	return m
}

func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	m.mu.user.push(message)
	m.unlock()
}

func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.mu.system.push(message)
	m.unlock()
}

// unlock has a goroutine come if there is something to handle.
func (m *mailbox) unlock() {
	call := !m.mu.running && !m.mu.called && (m.mu.system.len() > 0 || m.mu.user.len() > 0 && !m.mu.suspended)
	m.mu.called = m.mu.called || call
	m.mu.Unlock()
	if call {
		m.dispatcher.Schedule(m.process)
	}
}

// others is how many messages a goroutine handles that came after its own: their senders
// wait for it, and would wait again for the one that is called after it.
const others = 64

// hand is PostUserMessage for a goroutine that will wait. Where nobody handles messages,
// it does; also where a goroutine was called and has not come yet: where all cores are
// busy, that one waits for its turn of a core, and the answer for another. It stops when
// done is closed. sent, which may be nil, is called before.
func (m *mailbox) hand(message any, sent func(), done <-chan struct{}) {
	m.mu.Lock()
	m.mu.user.push(message)
	last, free := m.mu.taken+uint64(m.mu.user.len()), !m.mu.running
	m.mu.running = true
	if sent != nil {
		m.mu.Unlock()
		sent()
		m.mu.Lock()
	}
	if free {
		m.run(last+others, done)
	} else {
		m.mu.Unlock()
	}
}

func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.invoker, m.dispatcher = invoker, dispatcher
}

func (m *mailbox) Start() {}

func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.user.len()
}

// work is the life of a goroutine that was called.
func (m *mailbox) work() {
	m.mu.Lock()
	m.mu.called = false
	if m.mu.running { // who leaves messages behind calls again
		m.mu.Unlock()
		return
	}
	m.mu.running = true
	m.run(m.mu.taken+uint64(m.dispatcher.Throughput()), nil)
}

// run handles messages up to the last one, or until there are none or done is closed.
// It begins with the lock held and the mailbox running, and ends without.
func (m *mailbox) run(last uint64, done <-chan struct{}) {
	for m.mu.taken < last && m.next() {
		select {
		case <-done:
			last = 0
		default:
		}
	}
	m.mu.running = false
	m.unlock()
}

// next handles one message, without the lock, and reports whether there was one.
func (m *mailbox) next() bool {
	invoke := m.invoker.InvokeSystemMessage
	var message any
	switch {
	case m.mu.system.len() > 0:
		message = m.mu.system.pop()
		switch message.(type) {
		case *actor.SuspendMailbox:
			m.mu.suspended = true
			return true
		case *actor.ResumeMailbox:
			m.mu.suspended = false
			return true
		}
	case m.mu.user.len() > 0 && !m.mu.suspended:
		message = m.mu.user.pop()
		m.mu.taken++
		invoke = m.invoker.InvokeUserMessage
	default:
		return false
	}
	m.mu.Unlock()
	defer m.mu.Lock()
	m.guard(message, invoke)
	return true
}

// guard tells the library of a panic; a turn survives its own.
func (m *mailbox) guard(message any, invoke func(any)) {
	defer func() {
		if v := recover(); v != nil {
			m.invoker.EscalateFailure(v, message)
		}
	}()
	invoke(message)
}

// queue is first in, first out. What is not used for a while is not kept.
type queue struct {
	items []any
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(v any) {
	if q.head > len(q.items)/2 && len(q.items) == cap(q.items) { // rather than grow
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *queue) pop() any {
	const kept = 1 << 10 // places of an empty queue
	v := q.items[q.head]
	q.items[q.head] = nil
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > kept {
			q.items = nil
		}
	}
	return v
}
