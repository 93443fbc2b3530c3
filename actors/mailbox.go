package actors

import (
	"runtime"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is the queue of one actor, unbounded, behind the library's interface.
// The library's own takes two locks, six atomic operations and an allocation to
// do this for a message.
type mailbox struct {
	invoker    actor.MessageInvoker
	dispatcher actor.Dispatcher
	process    func() // run, made once

	mu struct {
		sync.Mutex
		user, system queue
		suspended    bool // by the library's supervision: no user messages
		running      bool // scheduled, until it was found empty
	}
}

func newMailbox() actor.Mailbox {
	m := new(mailbox)
	m.process = m.run
	return m
}

func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	m.mu.user.push(message)
	m.schedule()
}

func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.mu.system.push(message)
	m.schedule()
}

// schedule unlocks.
func (m *mailbox) schedule() {
	idle := !m.mu.running
	m.mu.running = true
	m.mu.Unlock()
	if idle {
		m.dispatcher.Schedule(m.process)
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

// run handles messages until there are none.
func (m *mailbox) run() {
	for handled := 0; m.next(); handled++ {
		if handled == m.dispatcher.Throughput() {
			handled = 0
			runtime.Gosched()
		}
	}
}

// next handles one message and reports whether there was one.
func (m *mailbox) next() bool {
	m.mu.Lock()
	switch {
	case m.mu.system.len() > 0:
		message := m.mu.system.pop()
		switch message.(type) {
		case *actor.SuspendMailbox:
			m.mu.suspended = true
			m.mu.Unlock()
		case *actor.ResumeMailbox:
			m.mu.suspended = false
			m.mu.Unlock()
		default:
			m.mu.Unlock()
			m.guard(message, m.invoker.InvokeSystemMessage)
		}
	case m.mu.user.len() > 0 && !m.mu.suspended:
		message := m.mu.user.pop()
		m.mu.Unlock()
		m.guard(message, m.invoker.InvokeUserMessage)
	default:
		m.mu.running = false
		m.mu.Unlock()
		return false
	}
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
